"""Which rights of docs/rights.md the relay's role lacks in the source, all at once."""

from collections.abc import Iterator
from typing import Final

from towpath.relay.finding import Finding, error
from towpath.relay.postgres.connect import Connection, quoted
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.relays import RELAY_TABLE
from towpath.relay.postgres.source_facts import OWN_TABLES
from towpath.schemas.table_name import TableName

# The relay reads the outbox in the log only.
_OUTBOX: Final = "towpath.outbox"
_WRITE: Final = ("select", "insert", "update", "delete")


def rights_findings(connection: Connection) -> Iterator[Finding]:
    """
    Find each of the relay's own tables, and its schema, on which the role lacks rights.

    Of captured tables ``table_report`` tells which cannot be read.

    Raises:
        psycopg.Error: The connection is gone.
    """
    wanted = [
        (TableName.parse(table), right)
        for table in OWN_TABLES
        if table != _OUTBOX
        for right in (_WRITE if table != RELAY_TABLE else ("select",))
    ]
    fields = {
        "schemas": [name.schema for name, _ in wanted],
        "tables": [name.table for name, _ in wanted],
        "rights": [right for _, right in wanted],
    }
    role = connection.info.user
    lacking = connection.execute(query("missing_rights"), fields).fetchall()
    for rights, schema, table in lacking:
        on = TableName(schema, table).sql if table else f"schema {quoted(schema)}"
        yield error(
            f"the role {role} lacks {rights} on {on}",
            "the relay halts where it needs it; docs/rights.md lists what it needs",
            f"run as the owner: GRANT {rights} ON {on} TO {quoted(role)}",
        )
