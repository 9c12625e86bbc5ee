"""Drop a sink's tables; check the rights of the target's user, and its health."""

from collections.abc import Iterator
from typing import Final

from psycopg import sql

from towpath.schemas.clock import Clock
from towpath.schemas.findings import CheckFinding, clock_findings
from towpath.settings import Sink
from towpath.sinks.postgres import Connection
from towpath.sinks.targets.health import TargetHealth, target_findings
from towpath.sinks.targets.postgres import schema
from towpath.sinks.targets.postgres.client import TargetSession
from towpath.sinks.targets.postgres.schema import TargetTable
from towpath.sinks.targets.postgres.tables import columns_of


def erase(sink: Sink, _prefix: str) -> None:
    """
    Drop a sink's tables; safe to repeat. The sink must not be running.

    Another user's view that depends on a table prevents this; the error names the view.

    Raises:
        UnavailableError: The target cannot be reached; try again.
        StatementDeniedError: A table cannot be dropped.
    """
    session = TargetSession(sink.url)
    try:
        for route in sink.route:
            with session.transaction() as connection:
                table = TargetTable(*schema.table_name(route.name), (), ())
                if columns_of(connection, table.schema, schema.REGISTRY):
                    _drop(connection, table)
    finally:
        session.close()


def missing_rights(sink: Sink, _prefix: str) -> Iterator[str]:
    """
    List the rights that the user in a sink's address lacks.

    Raises:
        UnavailableError: The target cannot be reached.
    """
    session = TargetSession(sink.url)
    try:
        with session.transaction() as connection:
            yield from _missing(connection, sink)
    finally:
        session.close()


def _missing(connection: Connection, sink: Sink) -> Iterator[str]:
    (user, database, may_create, may_copy), *_ = connection.execute(
        "select session_user, current_database(),"
        " has_database_privilege(current_database(), 'create'),"
        " has_database_privilege(current_database(), 'temporary')"
    ).fetchall()
    if not may_copy:
        yield f"{user} may not copy rows: grant temporary on database {database}"
    names = {schema.table_name(route.name) for route in sink.route}
    for namespace in sorted({name[0] for name in names}):
        found = connection.execute(
            "select has_schema_privilege(oid, 'create')"
            " and has_schema_privilege(oid, 'usage')"
            " from pg_namespace where nspname = %s",
            (namespace,),
        ).fetchone()
        if found is None and not may_create:
            yield f"{user} may not create the schema {namespace}: create it for {user}"
        elif found is not None and not found[0]:
            yield (
                f"{user} may not create tables in {namespace}: "
                f"grant usage, create on schema {namespace}"
            )
    for namespace, name in sorted(names):
        others = connection.execute(
            "select relname from pg_class"
            " join pg_namespace on pg_namespace.oid = relnamespace"
            " where nspname = %s and relname = any(%s)"
            " and not pg_has_role(relowner, 'usage')",
            (namespace, [name, schema.live_name(name), schema.REGISTRY]),
        )
        for (other,) in others.fetchall():
            yield f"{user} does not own {namespace}.{other}: change its owner to {user}"


def _drop(connection: Connection, table: TargetTable) -> None:
    """Drop a table and its view, if the table is registered as the sink's."""
    if connection.execute(schema.registered(table)).fetchone() is None:
        return
    for kind, name in (("view", table.live), ("table", table.identifier)):
        drop = sql.SQL("drop {} if exists {}").format(sql.SQL(kind), name)
        connection.execute(drop)
    connection.execute(schema.unregistration(table))


def health(sink: Sink, clock: Clock) -> Iterator[CheckFinding]:
    """
    Check the server of a target, and its clock.

    Raises:
        UnavailableError: The target cannot be reached.
    """
    session = TargetSession(sink.url)
    try:
        with session.transaction() as connection:
            before = clock.now()
            row = connection.execute(_HEALTH).fetchone()
            after = clock.now()
    finally:
        session.close()
    if row is not None:
        found = TargetHealth(*row)
        if found.now is not None:
            yield from clock_findings("the target", found.now, before, after)
        yield from target_findings(sink, found)


_HEALTH: Final = (
    "select current_setting('server_version_num')::int, pg_is_in_recovery(),"
    " current_setting('fsync') = 'on',"
    " (select count(*) from pg_stat_activity where backend_type = 'client backend'),"
    " current_setting('max_connections')::int, clock_timestamp()"
)
