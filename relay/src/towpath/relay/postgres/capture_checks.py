"""
Checks whether each table can be captured, from facts alone.

A table that the configuration names must be fit for capture. A table that only a
regular expression matches is skipped with a warning while it is unfit, unless the
publication already has it: skipping it would end its stream.

Before Postgres 18 no generated column is sent. From 18 on, stored ones are sent if the
publication lists them or has ``publish_generated_columns``; virtual ones never are. If
the replica identity holds a column that is not sent, Postgres 18 refuses every UPDATE
and DELETE of the table, so the table is never captured.
"""

from collections.abc import Iterator
from typing import Final

import structlog

from towpath.relay.encode.captured_tables import topic_findings
from towpath.relay.postgres.connect import Connection, quoted
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.source_facts import (
    MemberFacts,
    PublicationFacts,
    PublishedTable,
    SourceFacts,
    TableFacts,
    read_source_facts,
)
from towpath.schemas.findings import (
    CheckFinding,
    Severity,
    SqlFix,
    error_finding,
    warning_finding,
)
from towpath.schemas.table_name import TableName
from towpath.settings import Settings

_LOG = structlog.get_logger("towpath.relay.slot_monitor")

# The first server version that can publish stored generated columns.
PUBLISHES_GENERATED_SINCE: Final = 180000
_CHECK_INTERVAL_S: Final = 5.0
_UNKEYED: Final = "a delete would lack the record's key"
_REFUSED: Final = (
    "Postgres refuses the application's updates and deletes of published rows"
)


def new_publication(version: int) -> PublicationFacts:
    """Return facts about a publication that ``relay init`` creates."""
    return PublicationFacts(
        is_for_all=False,
        operations=(True,) * 4,
        via_root=True,
        tables={},
        sends_stored=version >= PUBLISHES_GENERATED_SINCE,
    )


def generated_findings(
    name: str, facts: SourceFacts, settings: Settings
) -> Iterator[CheckFinding]:
    """Yield the findings about generated columns that are not sent."""
    table, version = facts.tables[name], facts.server.version
    publication = facts.publications.get(
        settings.database.publication, new_publication(version)
    )
    published = publication.tables.get(name)
    listed = published.columns if published else None
    left_out = _left_out(table, listed, publication)
    remedy = _remedy(
        left_out <= table.stored, listed, settings.database.publication, version
    )
    wanted = frozenset(settings.relay.rows.key_columns.get(name, table.key))
    found: list[CheckFinding] = []
    if lacking := wanted & left_out:
        found.append(
            error_finding(
                "table-generated-key",
                f"{name}: its key has generated columns that are not sent: "
                f"{_listed_columns(lacking)}",
                *("records would have no key", remedy),
            )
        )
    if publication.sends_old_rows:
        for member in table.members:
            lacking = left_out & _identity(member, left_out, version)
            found += _identity_findings(member, lacking, listed, remedy, version)
    if left_out and listed is None and not found:
        found.append(
            warning_finding(
                "table-generated-columns",
                f"{name}: generated columns are left out: {_listed_columns(left_out)}",
                "topics, snapshots and sinks lack them",
                remedy,
            )
        )
    yield from found


class GeneratedColumns:
    """The slot monitor's task that logs generated columns that are not sent."""

    interval_s = _CHECK_INTERVAL_S

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reported: set[tuple[str, CheckFinding]] = set()

    def turn(self, connection: Connection) -> None:
        """
        Check once, and log new findings.

        Raises:
            psycopg.Error, SourceUnavailableError: The connection is lost.
        """
        publication = {"publication": self._settings.database.publication}
        rows = connection.execute(query("list_generating"), publication).fetchall()
        names = [TableName(*row).text for row in rows]
        names = [name for name in names if self._settings.capture.includes(name)]
        found: set[tuple[str, CheckFinding]] = set()
        if names:
            facts = read_source_facts(connection, self._settings, names)
            found = {
                (name, finding)
                for name in facts.tables
                for finding in generated_findings(name, facts, self._settings)
            }
        for name, finding in sorted(found - self._reported):
            log = _LOG.error if finding.level is Severity.ERROR else _LOG.warning
            log(
                "table column not published",
                table=name,
                reason=finding.what,
                effect=finding.why,
                remedy=finding.cure,
            )
        self._reported = found


def _identity_findings(
    member: MemberFacts,
    lacking: frozenset[str],
    listed: frozenset[str] | None,
    remedy: str,
    version: int,
) -> Iterator[CheckFinding]:
    """Yield the finding about a replica identity that is not sent in full."""
    if member.identity == "f" and listed is not None:
        yield error_finding(
            "table-identity-column-list",
            f"{member.name}: replica identity FULL and a column list",
            _REFUSED,
            f"run ALTER TABLE {_sql(member.name)} REPLICA IDENTITY DEFAULT, or"
            " remove the list from the publication",
        )
    elif lacking:
        yield error_finding(
            "table-identity-generated",
            f"{member.name}: its replica identity has generated columns that are not"
            f" sent: {_listed_columns(lacking)}",
            _REFUSED if version >= PUBLISHES_GENERATED_SINCE else _UNKEYED,
            remedy,
        )


def _left_out(
    table: TableFacts, listed: frozenset[str] | None, publication: PublicationFacts
) -> frozenset[str]:
    if listed is not None:
        return (table.stored | table.virtual) - listed
    return table.virtual if publication.sends_stored else table.stored | table.virtual


def _identity(
    member: MemberFacts, left_out: frozenset[str], version: int
) -> frozenset[str]:
    """Return the columns that the server checks; before 18 it does not check FULL."""
    if member.identity != "f":
        return member.identity_columns
    return left_out if version >= PUBLISHES_GENERATED_SINCE else frozenset()


def _remedy(
    is_stored: bool,  # noqa: FBT001 - one caller
    listed: frozenset[str] | None,
    publication: str,
    version: int,
) -> str:
    if version < PUBLISHES_GENERATED_SINCE:
        return "upgrade the server to 18 or later, or make the columns ordinary ones"
    if is_stored and listed is not None:
        # With a column list the server ignores publish_generated_columns.
        return (
            "add these columns to the table's column list in publication"
            f" {quoted(publication)}, then request a snapshot"
        )
    if is_stored:
        return (
            f"run ALTER PUBLICATION {quoted(publication)} SET"
            " (publish_generated_columns = stored), then request a snapshot"
        )
    return "make virtual columns STORED: the server sends no others"


def _listed_columns(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _sql(name: str) -> str:
    return TableName.parse(name).sql


_ORDINARY: Final = frozenset("rp")
_PERMANENT: Final = "p"


def tables_to_capture(facts: SourceFacts, settings: Settings) -> tuple[str, ...]:
    """Return the tables to capture; skip unfit tables that only patterns match."""
    return tuple(
        name
        for name in settings.capture.chosen(facts.tables)
        if not _is_optional(name, facts, settings)
        or blocking_finding(name, facts, settings) is None
    )


def blocking_finding(
    name: str, facts: SourceFacts, settings: Settings
) -> CheckFinding | None:
    """Return the first finding that prevents a table's capture; None without one."""
    for finding in table_findings(name, facts, settings):
        if finding.level is Severity.ERROR:
            return finding
    return None


def capture_list_findings(
    facts: SourceFacts, settings: Settings
) -> Iterator[CheckFinding]:
    """Yield the findings about all tables, and about expressions that match none."""
    for name in settings.capture.chosen(facts.tables):
        refused = blocking_finding(name, facts, settings)
        if refused is not None and _is_optional(name, facts, settings):
            yield refused._replace(
                level=Severity.WARNING, why=f"{refused.why}, so it is left out"
            )
        else:
            yield from table_findings(name, facts, settings)
    for entry in settings.capture.expressions:
        alone = settings.capture.only(entry)
        if not any(alone.includes(name) for name in facts.tables):
            yield warning_finding(
                "table-expression-unmatched",
                f"[source] tables: {entry} matches no table",
                "the expression captures nothing until a table matches",
                "correct the expression, or create the table",
            )


def topic_problems(facts: SourceFacts, settings: Settings) -> list[CheckFinding]:
    """Return the findings about tables without a topic of their own, each once."""
    found = topic_findings(settings, tables_to_capture(facts, settings))
    return list(dict.fromkeys(found.values()))


def _is_optional(name: str, facts: SourceFacts, settings: Settings) -> bool:
    """Return whether only an expression matches a table that is not captured yet."""
    publication = facts.publications.get(settings.database.publication)
    is_sent = publication is not None and publication.covers(name)
    return name not in settings.capture.names and not is_sent


def table_findings(
    name: str, facts: SourceFacts, settings: Settings
) -> Iterator[CheckFinding]:
    """Yield the findings that prevent or limit the capture of one table."""
    table = facts.tables.get(name)
    if table is None:
        yield error_finding(
            "table-missing",
            f"{name}: there is no such table",
            "the entry produces no records",
            "correct [source] tables",
        )
        return
    if table.kind not in _ORDINARY:
        yield error_finding(
            "table-kind",
            f"{name}: not a table",
            "changes to views and foreign tables are not in the log",
            "remove it from [source] tables",
        )
        return
    publication = facts.publications.get(
        settings.database.publication, new_publication(facts.server.version)
    )
    wanted = settings.relay.rows.key_columns.get(name, table.key)
    for member in table.members:
        yield from _member_findings(member, table, frozenset(wanted), publication)
    if not wanted:
        yield warning_finding(
            "table-no-primary-key",
            f"{name}: no primary key",
            "its rows are streamed without a key and cannot be snapshotted",
            f"ALTER TABLE {_sql(name)} ADD PRIMARY KEY (...)",
        )
    published = publication.tables.get(name)
    if published is not None:
        yield from _column_list_findings(name, published, frozenset(wanted), settings)
    yield from _key_findings(name, table)
    yield from generated_findings(name, facts, settings)


def _member_findings(
    member: MemberFacts,
    table: TableFacts,
    wanted: frozenset[str],
    publication: PublicationFacts,
) -> Iterator[CheckFinding]:
    """Check whether a relation is logged, and whether it identifies old rows."""
    alter = f"ALTER TABLE {_sql(member.name)}"
    default = SqlFix(f"{alter} REPLICA IDENTITY DEFAULT")
    full = f"run {alter} REPLICA IDENTITY FULL"
    if member.persistence != _PERMANENT:
        yield error_finding(
            "table-unlogged",
            f"{member.name}: not logged",
            "its changes are not in the log",
            f"run {alter} SET LOGGED",
        )
    is_identified = member.identity == "f" or bool(member.identity_columns)
    if not publication.sends_old_rows:
        if not is_identified:
            yield warning_finding(
                "table-identity-inserts-only",
                f"{member.name}: its rows cannot be identified",
                "only its inserts are streamed, as its publication sends nothing else",
                f"{full} before the publication sends updates",
            )
    elif not is_identified:
        yield error_finding(
            "table-identity-none",
            f"{member.name}: its rows cannot be identified",
            "Postgres refuses the application's updates and deletes of published rows",
            default if table.key else f"{full}, or {alter} ADD PRIMARY KEY (...)",
        )
    elif member.identity != "f" and not wanted <= member.identity_columns:
        lacking = ", ".join(sorted(wanted - member.identity_columns))
        yield error_finding(
            "table-identity-lacks-key",
            f"{member.name}: its replica identity lacks {lacking}",
            "a delete would lack the record's key",
            default if wanted <= set(table.key) else full,
        )


def _column_list_findings(
    name: str, published: PublishedTable, wanted: frozenset[str], settings: Settings
) -> Iterator[CheckFinding]:
    columns = published.columns
    if columns is not None and not wanted <= columns:
        lacking = ", ".join(sorted(wanted - columns))
        whole = PublishedTable(columns | wanted, published.row_filter)
        yield error_finding(
            "publication-columns-lack-key",
            f"{name}: the publication's column list leaves out {lacking}",
            "records would have no key",
            "list the key's columns too: "
            + publish_again(settings.database.publication, name, whole),
        )


def publish_again(publication: str, name: str, published: PublishedTable) -> str:
    """
    Return the statements that replace the columns or rows of a published table.

    SET TABLE would remove all other tables. In a single transaction, no change is
    missed.
    """
    alter, table = f"ALTER PUBLICATION {quoted(publication)}", f"ONLY {_sql(name)}"
    listed = ", ".join(map(quoted, sorted(published.columns or ())))
    columns = f" ({listed})" if listed else ""
    rows = published.row_filter
    where = f" WHERE ({rows})" if rows else ""
    return (
        f"BEGIN; {alter} DROP TABLE {table}; "
        f"{alter} ADD TABLE {table}{columns}{where}; COMMIT"
    )


def _key_findings(name: str, table: TableFacts) -> Iterator[CheckFinding]:
    if table.unstable_key:
        yield warning_finding(
            "table-key-collation",
            f"{name}: the collation of {', '.join(table.unstable_key)} is not "
            "deterministic",
            "different keys count as equal, so the table cannot be snapshotted",
            f"ALTER TABLE {_sql(name)} ALTER COLUMN {quoted(table.unstable_key[0])} "
            'TYPE text COLLATE "C"',
        )
    if table.has_row_security:
        yield warning_finding(
            "table-row-security",
            f"{name}: row security is on",
            "a snapshot sees only the rows that the role may see; the stream has all",
            "run ALTER ROLE ... BYPASSRLS for the role of [source] dsn",
        )
