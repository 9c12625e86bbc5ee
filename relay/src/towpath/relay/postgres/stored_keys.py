"""The columns of the keys of a table's records, as the catalog has them."""

from collections.abc import Sequence
from typing import NamedTuple

from towpath.relay.postgres.connect import Connection
from towpath.relay.postgres.queries import query
from towpath.schemas.table_name import TableName


class TableKey(NamedTuple):
    """A table and the columns of its key, in key order; none: it has no key."""

    oid: int
    name: str
    key: Sequence[str]


def read_table_keys(connection: Connection, oids: Sequence[int]) -> list[TableKey]:
    """
    Return the keys of tables; those that are gone are left out.

    Raises:
        psycopg.Error: The connection is gone.
    """
    if not oids:
        return []
    rows = connection.execute(query("read_table_keys"), {"oids": oids}).fetchall()
    return [
        TableKey(oid, TableName(schema, table).text, record_key(identity, keys))
        for oid, schema, table, identity, keys in rows
    ]


def record_key(
    identity: Sequence[str] | None, keys: Sequence[Sequence[str]] | None
) -> Sequence[str]:
    """
    Return the key of a table's records, as ``routing.relations.bind`` chooses it.

    Args:
        identity: The columns that the replica identity tells; none: it tells no key.
        keys: The columns of each index that tells rows apart, the best first.
    """
    for key in keys or ():
        if not identity or set(key) == set(identity):
            return key
    return identity or ()


def key_text(key: Sequence[str] | None) -> str:
    """Return a key for people."""
    return f"({', '.join(key)})" if key else "none"
