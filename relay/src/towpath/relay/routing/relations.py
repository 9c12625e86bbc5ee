"""
Table shapes: what the stream and the catalog say of a table, put together.

The stream tells columns and types, the catalog the key's order and the types' names.
Every shape goes to the compacted topic ``<prefix>.relations`` with the position from
which it holds, before the first row that has it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from towpath.relay.routing.record import FIXED_BYTES, Header, Record
from towpath.relay.wal.messages import RelationShape
from towpath.relay.wal.relation import Column, Relation
from towpath.schemas import headers, topics


@dataclass(frozen=True, slots=True)
class CatalogFacts:
    """
    What the catalog knows of a table.

    Attributes:
        key_names: The primary key's columns in key order; empty without, or if the
            table is gone by now.
        type_names: By type oid, as ``format_type`` writes it, without modifiers.
        required_names: The columns that are NOT NULL.
    """

    key_names: tuple[str, ...]
    type_names: Mapping[int, str]
    required_names: frozenset[str]


NOTHING_KNOWN = CatalogFacts((), {}, frozenset())


def bind(shape: RelationShape, facts: CatalogFacts) -> Relation:
    """
    Return the relation that a stream's shape and the catalog make together.

    A key that the catalog does not know any more is taken from the replica identity.
    """
    columns = tuple(Column(c.name, c.type_oid, c.typmod) for c in shape.columns)
    places = {column.name: index for index, column in enumerate(columns)}
    key: tuple[int, ...] = ()
    if facts.key_names and all(name in places for name in facts.key_names):
        key = tuple(places[name] for name in facts.key_names)
    elif shape.identity != "f":
        key = tuple(at for at, column in enumerate(shape.columns) if column.is_key)
    return Relation(
        oid=shape.oid,
        schema=shape.schema,
        table=shape.table,
        columns=columns,
        key=key,
        identity=shape.identity,
    )


def relation_record(
    prefix: str,
    relation: Relation,
    facts: CatalogFacts,
    position: bytes,
    timestamp_ms: int,
) -> Record:
    """Return the record that tells sinks a table's shape."""
    value = orjson.dumps(
        {
            "schema": relation.schema,
            "table": relation.table,
            "oid": relation.oid,
            "columns": [
                {
                    "name": column.name,
                    "type": facts.type_names.get(column.type_oid, "text"),
                    "type_oid": column.type_oid,
                    "typmod": column.typmod,
                    "nullable": column.name not in facts.required_names,
                }
                for column in relation.columns
            ],
            "key": relation.key_names,
            "position": position.decode(),
        }
    )
    key = relation.name.encode()
    size = len(value) + len(key) + FIXED_BYTES
    marks: list[Header] = [(headers.POSITION, position)]
    topic = topics.relations_topic(prefix)
    return Record(topic, key, value, marks, position, timestamp_ms, size)
