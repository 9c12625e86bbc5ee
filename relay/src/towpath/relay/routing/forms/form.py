"""
A form: what one column's text becomes, and the schema that says so.

Schemas are Kafka Connect's: a kind, a semantic name with parameters, and what an array,
a map or a struct is made of. JSON with schemas and Avro are both written from them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, NamedTuple

Kind = Literal[
    "boolean",
    "int16",
    "int32",
    "int64",
    "float",
    "double",
    "string",
    "bytes",
    "array",
    "map",
    "struct",
]


@dataclass(frozen=True, slots=True)
class Schema:
    """
    A Connect schema.

    Attributes:
        kind: Its literal type, by Connect's name.
        name: Its semantic type, or a struct's name; None without.
        version: The semantic type's version.
        parameters: What the semantic type needs besides, as texts.
        is_optional: Whether null is a value.
        items: Of an array's elements, or a map's values.
        fields: Of a struct, by name, in order.
        default: What a null field of a struct reads as; None without.
    """

    kind: Kind
    name: str | None = None
    version: int | None = None
    parameters: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType(dict[str, str]())
    )
    is_optional: bool = False
    items: "Schema | None" = None
    fields: "tuple[tuple[str, Schema], ...]" = ()
    default: object = None

    def optional(self) -> "Schema":
        """Return the same schema, with null as a value."""
        return replace(self, is_optional=True)


class Fragments(NamedTuple):
    """
    A column's values as JSON fragments, many rows of it at once.

    Attributes:
        texts: One of each value, in their order.
        mark: What stands before and behind each: a quote, or nothing.
    """

    texts: Sequence[bytes]
    mark: bytes = b""


class Form(NamedTuple):
    """
    What a column's text becomes.

    Attributes:
        schema: What ``value`` gives, for readers.
        json: The text as a JSON fragment. Hot path.
        value: The text as the value that Avro's writer takes: int, float, bool, str,
            bytes, list, dict; None for what the form cannot express.
        column: The same as ``json`` of many texts at once, where there is a faster
            way than one after another.
    """

    schema: Schema
    json: Callable[[bytes], bytes]
    value: Callable[[bytes], object]
    column: Callable[[Sequence[bytes]], Fragments] | None = None
