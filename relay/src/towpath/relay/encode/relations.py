"""
Table schemas, built from the stream's relation message and the catalog.

The stream provides columns and types; the catalog provides the key's order and the
names of types. Each schema is published to the compacted topic ``<prefix>.relations``
before its first row, with the position from which it is valid. A ``ColumnPlan`` lists
the published columns of a table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

import orjson

from towpath.relay.encode.codecs.connect_schema import Field
from towpath.relay.encode.record import (
    FIRST_PARTITION,
    FIXED_BYTES,
    Header,
    Record,
)
from towpath.relay.encode.types.form import TypeFacts, Types
from towpath.relay.wal.messages import Column, Relation, RelationShape, Row
from towpath.schemas import headers, topics

_TEXT_OID: Final = 25


class ColumnPlan(NamedTuple):
    """
    A table's published columns.

    Attributes:
        key: The columns of the record's key, in key order; empty without a key.
        columns: The columns of the value, in the order of the row.
        texts: Indexes of columns that are published as text: masked or hashed.
        ruled: Indexes of columns that a rule changes: masked, hashed or truncated.
    """

    key: tuple[Field, ...]
    columns: tuple[Field, ...]
    texts: frozenset[int] = frozenset()
    ruled: frozenset[int] = frozenset()

    def published(self, relation: Relation) -> Relation:
        """Return the relation of the published columns, as ``texts_of`` writes them."""
        columns = (
            Column(relation.columns[at].name, _TEXT_OID)
            if at in self.ruled
            else relation.columns[at]
            for at, *_ in self.columns
        )
        return replace(relation, columns=tuple(columns))

    def texts_of(self, row: Row) -> Row:
        """Return the texts of a row's published columns, changed by their rules."""
        return tuple(
            str(field.form.value(value)).encode()
            if field.at in self.ruled and isinstance(value, bytes)
            else value
            for field, value in ((field, row[field.at]) for field in self.columns)
        )


_TEXT: Final = TypeFacts("text", "text", category="S")


@dataclass(frozen=True, slots=True)
class CatalogFacts:
    """
    The catalog's facts about a table.

    Attributes:
        key_names: The primary key's columns in key order, or another key's; empty
            without a key. For a dropped table: the key of the current table of that
            name.
        type_names: The types' names by oid, as ``format_type`` gives them without a
            type modifier.
        required_names: The columns that are NOT NULL.
        other_keys: The columns of further unique indexes on columns that are NOT NULL.
        types: The types of the columns, and those that they contain.
    """

    key_names: tuple[str, ...]
    type_names: Mapping[int, str]
    required_names: frozenset[str]
    other_keys: tuple[tuple[str, ...], ...] = ()
    types: Types = field(default_factory=lambda: MappingProxyType({}))


NOTHING_KNOWN = CatalogFacts((), {}, frozenset())


def bind(shape: RelationShape, facts: CatalogFacts) -> Relation:
    """
    Combine a relation message and the catalog's facts into a relation.

    The stream has the key at the time of its rows: the columns of the replica
    identity. The catalog has their order. It also provides the columns themselves if
    the identity is ``full`` or ``nothing``, or has no columns.
    """
    columns = tuple(Column(c.name, c.type_oid, c.typmod) for c in shape.columns)
    return Relation(
        oid=shape.oid,
        schema=shape.schema,
        table=shape.table,
        columns=columns,
        key=_key(shape, facts),
        identity=shape.identity,
    )


def _key(shape: RelationShape, facts: CatalogFacts) -> tuple[int, ...]:
    places = {column.name: at for at, column in enumerate(shape.columns)}
    streamed = tuple(
        at
        for at, column in enumerate(shape.columns)
        if column.is_key and shape.identity != "f"
    )
    for names in (facts.key_names, *facts.other_keys):
        if not names or not all(name in places for name in names):
            continue
        key = tuple(places[name] for name in names)
        if not streamed or set(key) == set(streamed):
            return key
    return streamed


def relation_record(
    prefix: str,
    relation: Relation,
    facts: CatalogFacts,
    plan: ColumnPlan,
    position: bytes,
    timestamp_ms: int,
) -> Record:
    """Return the record that describes a table's published columns to sinks."""
    fields = {one.at: one.name for one in (*plan.columns, *plan.key)}
    value = orjson.dumps(
        {
            "schema": relation.schema,
            "table": relation.table,
            "oid": relation.oid,
            "columns": [
                _column_document(
                    relation.columns[at], fields[at], facts, is_text=at in plan.texts
                )
                for at in sorted(fields)
            ],
            "key": [one.name for one in plan.key],
            "position": position.decode(),
        }
    )
    key = relation.name.encode()
    size = len(value) + len(key) + FIXED_BYTES
    own: list[Header] = [(headers.POSITION, position)]
    topic = topics.relations_topic(prefix)
    return Record(topic, key, value, own, position, timestamp_ms, size, FIRST_PARTITION)


def _column_document(
    column: Column, name: str, facts: CatalogFacts, *, is_text: bool
) -> dict[str, object]:
    """Describe a column; a masked or hashed one has the type text."""
    oid = _TEXT_OID if is_text else column.type_oid
    document: dict[str, object] = {
        "name": name,
        "type": "text" if is_text else facts.type_names.get(oid, "text"),
        "type_oid": oid,
        "typmod": -1 if is_text else column.typmod,
        "nullable": column.name not in facts.required_names,
    }
    if name != column.name:
        document["source_name"] = column.name
    return document if is_text else document | _type_document(oid, facts.types)


def _type_document(type_oid: int, types: Types) -> dict[str, object]:
    """Describe a type's ``element``, ``base``, ``labels`` or ``fields``."""
    facts = types.get(type_oid, _TEXT)
    inside: dict[str, object] = {}
    if facts.element_oid:
        inside["element"] = _named(facts.element_oid, types)
    if facts.base_oid:
        inside["base"] = _named(facts.base_oid, types) | {"typmod": facts.base_typmod}
    if facts.labels:
        inside["labels"] = list(facts.labels)
    if facts.fields:
        inside["fields"] = _fields(facts, types)
    return inside


def _fields(facts: TypeFacts, types: Types) -> list[dict[str, object]]:
    return [
        {"name": one.name, "typmod": one.typmod} | _named(one.type_oid, types)
        for one in facts.fields
    ]


def _named(type_oid: int, types: Types) -> dict[str, object]:
    name = types.get(type_oid, _TEXT).full_name
    return {"type": name, "type_oid": type_oid} | _type_document(type_oid, types)
