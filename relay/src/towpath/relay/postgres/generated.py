"""
Generated columns: which of them are captured, and whose writers capturing would stop.

Before Postgres 18 none is sent. From then on stored ones are, if the publication says
so; virtual ones never. Where the replica identity holds a column that is not sent,
Postgres 18 refuses every UPDATE and DELETE of the table, so it is never captured.
"""

from collections.abc import Iterator
from typing import Final

import structlog

from towpath.relay.finding import Finding, Level, error, warning
from towpath.relay.postgres.connect import Connection, quoted
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.source_facts import (
    MemberFacts,
    PublicationFacts,
    SourceFacts,
    TableFacts,
    read_facts,
)
from towpath.schemas.table_name import TableName
from towpath.settings import Settings

_LOG = structlog.get_logger("towpath.relay.guardian")

SENDING_VERSION: Final = 180000
_LOOK_INTERVAL_S: Final = 5.0
_UNKEYED: Final = "a delete would not tell the record's key"
_REFUSED: Final = (
    "Postgres refuses the application's updates and deletes of published rows"
)


def new_publication(version: int) -> PublicationFacts:
    """Return what a publication made by ``relay init`` sends of a table."""
    return PublicationFacts(
        is_for_all=False,
        operations=(True,) * 4,
        via_root=True,
        tables={},
        sends_stored=version >= SENDING_VERSION,
    )


def findings(name: str, facts: SourceFacts, settings: Settings) -> Iterator[Finding]:
    """Return what is left out of a table, and why it cannot be captured, if so."""
    table, version = facts.tables[name], facts.server.version
    publication = facts.publications.get(
        settings.database.publication, new_publication(version)
    )
    published = publication.tables.get(name)
    listed = published.columns if published else None
    left_out = _left_out(table, listed, publication)
    cure = _cure(left_out <= table.stored, settings.database.publication, version)
    wanted = frozenset(settings.relay.rows.key_columns.get(name, table.key))
    found: list[Finding] = []
    if lacking := wanted & left_out:
        found.append(
            error(
                f"{name}: its key has generated columns not sent: {_listed(lacking)}",
                "records would have no key",
                cure,
            )
        )
    if publication.sends_old_rows:
        for member in table.members:
            found += _of_member(
                member,
                left_out & _identity(member, left_out, version),
                listed,
                cure,
                version,
            )
    if left_out and listed is None and not found:
        found.append(
            warning(
                f"{name}: generated columns are left out: {_listed(left_out)}",
                "topics, snapshots and sinks are without them",
                cure,
            )
        )
    yield from found


class GeneratedColumns:
    """Reports generated columns that captured tables have or come to have."""

    interval_s = _LOOK_INTERVAL_S

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reported: set[tuple[str, Finding]] = set()

    def turn(self, connection: Connection) -> None:
        """
        Look once, and log what is new.

        Raises:
            psycopg.Error: The connection is gone.
            SourceUnavailableError: The same.
        """
        publication = {"publication": self._settings.database.publication}
        rows = connection.execute(query("list_generating"), publication).fetchall()
        names = [TableName(*row).text for row in rows]
        names = [name for name in names if self._settings.capture.takes(name)]
        found: set[tuple[str, Finding]] = set()
        if names:
            facts = read_facts(connection, self._settings, names)
            found = {
                (name, finding)
                for name in facts.tables
                for finding in findings(name, facts, self._settings)
            }
        for name, finding in sorted(found - self._reported):
            log = _LOG.error if finding.level is Level.ERROR else _LOG.warning
            log(
                "table column not published",
                table=name,
                reason=finding.what,
                effect=finding.why,
                remedy=finding.cure,
            )
        self._reported = found


def _of_member(
    member: MemberFacts,
    lacking: frozenset[str],
    listed: frozenset[str] | None,
    cure: str,
    version: int,
) -> Iterator[Finding]:
    """Return why the server would refuse a table's writers, if it would."""
    if member.identity == "f" and listed is not None:
        yield error(
            f"{member.name}: replica identity FULL and a column list",
            _REFUSED,
            f"run ALTER TABLE {_sql(member.name)} REPLICA IDENTITY DEFAULT, or"
            " take the list out of the publication",
        )
    elif lacking:
        yield error(
            f"{member.name}: its replica identity has generated columns that are not"
            f" sent: {_listed(lacking)}",
            _REFUSED if version >= SENDING_VERSION else _UNKEYED,
            cure,
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
    """Return what the server checks; before 18 it checks nothing of FULL."""
    if member.identity != "f":
        return member.identity_columns
    return left_out if version >= SENDING_VERSION else frozenset()


def _cure(is_stored: bool, publication: str, version: int) -> str:  # noqa: FBT001 - one caller
    if version < SENDING_VERSION:
        return "upgrade the server to 18 or later, or make it an ordinary column"
    if is_stored:
        return (
            f"run ALTER PUBLICATION {quoted(publication)} SET"
            " (publish_generated_columns = stored), then ask for a snapshot"
        )
    return "make virtual columns STORED: the server sends no others"


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _sql(name: str) -> str:
    return TableName.parse(name).sql
