"""
The tables of the source that applications and the relay share, as SQL.

=====================  ===============================================================
``towpath.outbox``     services insert their events
``towpath.signal``     operators insert requests; the relay answers in the same row
``towpath.heartbeat``  the relay increments a counter, to check that the log advances
=====================  ===============================================================

``relay init`` creates them, and so do migrations (``towpath.outbox.alembic``): the SQL
is the same, and can be run repeatedly. A table of an earlier release gets its missing
columns. The other tables of schema ``towpath`` belong to the relay alone.

A partitioned outbox has one partition per UTC day. The server's time at the insert
determines a row's partition: an event's ``occurred_at`` may be on an earlier day.
"""

# ruff: noqa: S608 - names and literals are quoted
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, NamedTuple

from towpath.schemas.failure import UsageError
from towpath.schemas.table_name import LONGEST_NAME_BYTES, TableName, quoted

SCHEMA: Final = "towpath"
OUTBOX: Final = "towpath.outbox"
SIGNAL: Final = "towpath.signal"
HEARTBEAT: Final = "towpath.heartbeat"
# The partition key of a partitioned outbox.
INSERTED_AT: Final = "inserted_at"
# Partitions beyond today's that a new outbox gets: an insert fails without a partition
# for its day.
DAYS_AHEAD: Final = 30


class Column(NamedTuple):
    """
    A column.

    Attributes:
        name: Its name.
        type: Its type, as the catalog writes it.
        constraint: Its constraint and its default.
        was_added: Whether an earlier release created the table without it.
    """

    name: str
    type: str
    constraint: str = ""
    was_added: bool = False

    @property
    def sql(self) -> str:
        """The definition in a ``create table``."""
        return f"{quoted(self.name)} {self.type} {self.constraint}".rstrip()


@dataclass(frozen=True, slots=True)
class SourceTable:
    """
    One table.

    Attributes:
        name: Its name.
        columns: Its columns, in order.
        partition_key: The column by whose ranges the table is partitioned; empty if it
            is not partitioned.
    """

    name: TableName
    columns: tuple[Column, ...]
    partition_key: str = ""

    def create_statement(self) -> str:
        """Return the statement that creates the table unless it exists."""
        lines = [column.sql for column in self.columns]
        tail = ")"
        if self.partition_key:
            key = self.columns[0].name
            lines.append(f"primary key ({quoted(key)}, {quoted(self.partition_key)})")
            tail = f") partition by range ({quoted(self.partition_key)})"
        body = ",\n    ".join(lines)
        return f"create table if not exists {self.name.sql} (\n    {body}\n{tail}"

    def drop_statement(self) -> str:
        """Return the statement that drops the table, and its partitions."""
        return f"drop table if exists {self.name.sql}"

    def upgrade_statements(self) -> Iterator[str]:
        """Yield the statements that add the columns that earlier releases lacked."""
        for column in self.columns:
            if column.was_added:
                yield (
                    f"alter table {self.name.sql} add column if not exists {column.sql}"
                )

    def check_statement(self) -> str:
        """
        Return a statement that fails unless the table has these columns and types.

        Its error lists each column that is missing or has a different type. The check
        is SQL, so that a migration that is only printed contains it too.
        """
        rows = ",\n        ".join(
            f"({_literal(c.name)}, {_literal(c.type)})" for c in self.columns
        )
        name = _literal(self.name.sql)
        return f"""do $check$
declare wrong text;
begin
    select string_agg(
        e.name || case when a.attname is null then ' is missing' else ' is '
            || format_type(a.atttypid, a.atttypmod) || ', not ' || e.type end, '; '
    ) into wrong
    from (values
        {rows}
    ) as e (name, type)
    left join pg_catalog.pg_attribute a
        on a.attrelid = to_regclass({name}) and a.attname = e.name
        and a.attnum > 0 and not a.attisdropped
    where a.attname is null or format_type(a.atttypid, a.atttypmod) <> e.type;
    if wrong is not null then
        raise exception using
            message = {_literal(f"table {self.name.text}: ")} || wrong,
            hint = 'run the migration that creates or upgrades it';
    end if;
end
$check$"""

    def partition(self, day: date) -> TableName:
        """
        Return the name of the partition of a day.

        Raises:
            UsageError: The name is too long. Postgres would cut off the day, so the
                partitions of all days would be the same table.
        """
        name = f"{self.name.table}_{day:%Y%m%d}"
        if len(name.encode()) > LONGEST_NAME_BYTES:
            message = (
                f"the partition {name} of {self.name.text} has a name of more than "
                f"{LONGEST_NAME_BYTES} bytes: give the outbox a shorter name"
            )
            raise UsageError(message)
        return TableName(self.name.schema, name)

    def partition_statements(self, day: date) -> Iterator[str]:
        """
        Yield the statements that add the partition of a day unless it exists.

        The partition is created as a table and then attached: this neither waits for
        writers nor blocks them, unlike ``create table ... partition of``.

        Raises:
            UsageError: The partition's name is too long.
        """
        name, parent = self.partition(day).sql, self.name.sql
        start = datetime.combine(day, time(), UTC)
        end = start + timedelta(days=1)
        yield (
            f"create table if not exists {name} "
            f"(like {parent} including defaults including constraints)"
        )
        yield f"""do $attach$
begin
    if not exists (
        select from pg_catalog.pg_inherits where inhrelid = {_literal(name)}::regclass
    ) then
        alter table {parent} attach partition {name}
            for values from ('{start.isoformat()}') to ('{end.isoformat()}');
    end if;
end
$attach$"""


def outbox(
    table: str = OUTBOX,
    names: Mapping[str, str] | None = None,
    *,
    is_partitioned: bool = False,
) -> SourceTable:
    """
    Describe an outbox.

    Args:
        table: Its name.
        names: Names that replace the default names of its columns; an empty name omits
            the column.
        is_partitioned: Whether it has a partition for each day.
    """
    given = (((names or {}).get(c.name, c.name), c) for c in _OUTBOX)
    columns = [column._replace(name=name) for name, column in given if name]
    if is_partitioned:
        # The key of a partitioned table includes the partition key.
        columns[0] = columns[0]._replace(constraint="not null")
        columns.append(_INSERTED_AT)
    key = INSERTED_AT if is_partitioned else ""
    return SourceTable(TableName.parse(table), tuple(columns), key)


def signal() -> SourceTable:
    """Describe the signal table."""
    return SourceTable(TableName.parse(SIGNAL), _SIGNAL)


def heartbeat() -> SourceTable:
    """Describe the heartbeat table."""
    return SourceTable(TableName.parse(HEARTBEAT), _HEARTBEAT)


def schema_statement(schema: str = SCHEMA) -> str:
    """Return the statement that creates a schema unless it exists."""
    return f"create schema if not exists {quoted(schema)}"


def grant_statements(
    table: SourceTable, privileges: str, roles: Iterable[str]
) -> Iterator[str]:
    """Yield the statements that grant privileges on a table and usage of its schema."""
    for role in roles:
        yield f"grant usage on schema {quoted(table.name.schema)} to {quoted(role)}"
        yield f"grant {privileges} on {table.name.sql} to {quoted(role)}"


_OUTBOX: Final = (
    Column("id", "uuid", "primary key"),
    Column("aggregate_type", "text", "not null"),
    Column("aggregate_id", "text", "not null"),
    Column("type", "text", "not null"),
    Column("payload", "json"),
    Column("headers", "json"),
    Column("traceparent", "text"),
    Column("occurred_at", "timestamp with time zone", "not null default now()"),
)
_INSERTED_AT: Final = Column(
    INSERTED_AT, "timestamp with time zone", "not null default clock_timestamp()"
)
_SIGNAL: Final = (
    Column("id", "character varying(64)", "primary key"),
    Column("type", "character varying(32)", "not null"),
    Column("data", "text"),
    Column("status", "text"),
    Column("detail", "jsonb"),
    Column("updated_at", "timestamp with time zone"),
    Column("relay", "text", was_added=True),
)
_HEARTBEAT: Final = (
    Column("id", "integer", "primary key"),
    Column("counter", "bigint", "not null"),
    Column("beat_at", "timestamp with time zone", "not null"),
)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
