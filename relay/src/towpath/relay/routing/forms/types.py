"""
What the catalog knows of types: of those that columns have, and of all inside them.

A type that is gone by now is not among them; its values stay the text that they are.
"""

from collections.abc import Mapping
from typing import NamedTuple

from towpath.settings.relay import Relay
from towpath.settings.rows import RecordFormat, Rows, Times

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
