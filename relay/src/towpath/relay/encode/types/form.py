"""
Forms: the conversion of a column's text to its value in records, with its schema.

Schemas are Kafka Connect's: a kind, a semantic name with parameters, and the parts of
arrays, maps and structs. JSON with schemas and Avro are both written from them.

``TypeFacts`` holds the catalog's facts about a column's type, or one nested in it.
A dropped type has no facts; its values remain text.
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
        name: Its semantic type, or a struct's name; None if it has none.
        version: The semantic type's version.
        parameters: The semantic type's parameters, as strings.
        is_optional: Whether null is a value.
        items: The schema of an array's elements, or of a map's values.
        fields: A struct's fields by name, in order.
        default: The default of a struct's field; None if it has none.
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
    A column of many rows as JSON fragments.

    Attributes:
        texts: One text per value, in order.
        mark: Precedes and follows each text: a quote, or nothing.
    """

    texts: Sequence[bytes]
    mark: bytes = b""


class Form(NamedTuple):
    """
    The conversion of a column's text.

    Attributes:
        schema: The schema of ``value``.
        json: Returns the text as a JSON fragment. Hot path.
        value: Returns the text as a value for Avro's writer: int, float, bool, str,
            bytes, list or dict; None for a value that the form cannot express.
        column: Does the same as ``json`` for many values, where that is faster.
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
    The catalog's facts about a type.

    Attributes:
        name: Its bare name.
        full_name: Its name as ``format_type`` writes it, without modifiers.
        kind: ``typtype``: b(ase), c(omposite), d(omain), e(num), m(ultirange),
            p(seudo) or r(ange).
        category: ``typcategory``.
        element_oid: An array's element type; 0 for other types.
        delimiter: The delimiter of elements in an array of this type.
        base_oid: A domain's base type; 0 for other types.
        base_typmod: The modifier that a domain sets on its base type.
        labels: An enum's labels, in order.
        fields: A composite's fields, in order.
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
    The modes in which values are written.

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
        """Whether times are strings."""
        return self.rows.times is Times.ISO


def modes_of(relay: Relay) -> Modes:
    """Return the configured modes."""
    return Modes(relay.rows, relay.preset == "debezium")
