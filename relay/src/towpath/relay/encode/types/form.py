"""
A form: what one column's text becomes, and the schema that says so.

Schemas are Kafka Connect's: a kind, a semantic name with parameters, and what an array,
a map or a struct is made of. JSON with schemas and Avro are both written from them.

What the catalog knows of types: of those that columns have, and of all inside them.

A type that is gone by now is not among them; its values stay the text that they are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, NamedTuple

from towpath.settings.relay import Relay
from towpath.settings.rows import RecordFormat, Rows, Times

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
    The value of a column's text.

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


NO_TYPMOD = -1


class TypeField(NamedTuple):
    """A field of a composite type."""

    name: str
    type_oid: int
    typmod: int


class TypeFacts(NamedTuple):
    """
    A type.

    Attributes:
        name: Its bare name.
        full_name: As ``format_type`` writes it, without modifiers.
        kind: ``typtype``: b(ase), c(omposite), d(omain), e(num), m(ultirange),
            p(seudo) or r(ange).
        category: ``typcategory``: what the type is like.
        element_oid: Of what it is the array; 0 for anything else.
        delimiter: What stands between elements in an array of this type.
        base_oid: What it is a domain over; 0 for anything else.
        base_typmod: The domain's modifier of that.
        labels: An enum's labels, in their order.
        fields: A composite's fields, in their order.
    """

    name: str
    full_name: str
    kind: str = "b"
    category: str = "U"
    element_oid: int = 0
    delimiter: str = ","
    base_oid: int = 0
    base_typmod: int = NO_TYPMOD
    labels: tuple[str, ...] = ()
    fields: tuple[TypeField, ...] = ()


Types = Mapping[int, TypeFacts]


class Modes(NamedTuple):
    """
    How values are to be written.

    Attributes:
        rows: The configured modes.
        is_debezium: Whether types that have no mode take Debezium's forms.
    """

    rows: Rows
    is_debezium: bool

    @property
    def has_schema(self) -> bool:
        """Whether records carry a schema that values must fit."""
        return self.rows.format is not RecordFormat.JSON

    @property
    def is_iso(self) -> bool:
        """Whether times are texts."""
        return self.rows.times is Times.ISO


def modes_of(relay: Relay) -> Modes:
    """Return the modes that the configuration asks for."""
    return Modes(relay.rows, relay.preset == "debezium")
