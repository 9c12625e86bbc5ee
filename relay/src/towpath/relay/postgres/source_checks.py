"""
Periodic checks of objects that the source's owner can change while a relay runs.

At start and every few seconds, the relay checks the publications, the signal tables in
them, the columns and partitions of the outbox, and that no publication is newer than
the slot. A problem is logged once when it appears and once when it is solved; it also
appears in a metric, in ``status`` and in ``doctor``. A relay whose outbox lacks a
column halts only at the next event, so that a source without events is not stopped.
"""

from collections.abc import Iterator
from typing import Final

import structlog

from towpath.relay.encode.outbox import EventWriter
from towpath.relay.errors import NotPreparedError
from towpath.relay.postgres.connect import Connection, translated_errors
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.source_facts import missing_table_text, name_lists
from towpath.relay.stats import Stats
from towpath.relay.wal.messages import Column, Relation
from towpath.schemas.findings import (
    CheckFinding,
    Severity,
    error_finding,
    warning_finding,
)
from towpath.schemas.table_name import TableName
from towpath.settings import Settings

_LOG = structlog.get_logger("towpath.relay.slot_monitor")

INTERVAL_S: Final = 5.0
_SIGNAL_TABLE: Final = "towpath.signal"
_INIT: Final = "run towpath relay init"
_DAY_S: Final = 86_400.0
# A cleaning job that fails over a weekend is noticed before an insert fails.
_MIN_PARTITIONED_S: Final = 4 * _DAY_S


def source_problems(connection: Connection, settings: Settings) -> list[CheckFinding]:
    """
    Return the current problems with the publications and the outbox.

    Raises:
        SourceUnavailableError: The connection is lost.
    """
    with translated_errors("checking publications and outbox"):
        return [
            *_publication_problems(connection, settings),
            *_outbox_problems(connection, settings),
        ]


class SourceChecks:
    """The slot monitor's task that logs problems with the source."""

    def __init__(self, settings: Settings, stats: Stats) -> None:
        self.interval_s = min(INTERVAL_S, settings.relay.heartbeat_interval_s)
        self._settings = settings
        self._stats = stats

    def turn(self, connection: Connection) -> None:
        """
        Check once.

        Raises:
            SourceUnavailableError: The connection is lost.
        """
        problems = source_problems(connection, self._settings)
        found = {each.what: each for each in problems}
        known = self._stats.source_problems
        for what, finding in found.items():
            if what not in known:
                is_error = finding.level is Severity.ERROR
                log = _LOG.error if is_error else _LOG.warning
                log("source problem", what=what, why=finding.why, remedy=finding.cure)
        for what in known:
            if what not in found:
                _LOG.info("source problem solved", what=what)
        self._stats.source_problems = tuple(found)


def _publication_problems(
    connection: Connection, settings: Settings
) -> Iterator[CheckFinding]:
    source, outbox = settings.database, settings.relay.outbox.table
    signals = tuple(filter(None, (_SIGNAL_TABLE, settings.relay.snapshot.signal_table)))
    unseen = "signals that are inserted there are not seen"
    unsent = "events that are inserted there are not published"
    wanted = (
        (source.publication, signals, unseen),
        (source.outbox_publication, (outbox,), unsent),
    )
    for publication, tables, why in wanted:
        parameters = {"publication": publication, "slot": source.slot}
        row = connection.execute(query("read_publication_age"), parameters).fetchone()
        if row is None:
            what = f"publication {publication} is missing"
            yield error_finding("publication-missing", what, "nothing is sent", _INIT)
            continue
        if row[0]:
            yield warning_finding(
                "slot-before-publication",
                f"slot {source.slot} is older than publication {publication}",
                "the relay halts at the first change that was logged before the"
                " publication was created",
                "see PublicationYoungerError in the runbook",
            )
        names = {"publication": publication, **name_lists(tables)}
        rows = connection.execute(query("list_tables"), names).fetchall()
        sent = {TableName(*row[:2]).text for row in rows if row[3]}
        for table in tables:
            if table not in sent:
                yield error_finding(
                    "publication-table-missing",
                    f"publication {publication} does not include {table}",
                    why,
                    _INIT,
                )


def _partition_problems(
    connection: Connection, oid: int, name: str
) -> Iterator[CheckFinding]:
    """Yield a finding if the outbox has no partitions for the coming days."""
    row = connection.execute(query("read_partitioned_until"), {"oid": oid}).fetchone()
    if row is not None and row[0] < _MIN_PARTITIONED_S:
        level = error_finding if row[0] <= _DAY_S else warning_finding
        yield level(
            "outbox-partitions-end",
            f"{name} has partitions for less than four days",
            f"inserts of events fail in {max(0.0, row[0]) / _DAY_S:.1f} days",
            "run towpath outbox clean daily: it creates partitions for the next days",
        )


def _outbox_problems(
    connection: Connection, settings: Settings
) -> Iterator[CheckFinding]:
    """Yield the outbox's problems; its columns are checked by an event writer."""
    name = settings.relay.outbox.table
    full_name = TableName.parse(name)
    parameters = {"schema": full_name.schema, "table": full_name.table}
    row = connection.execute(query("read_table_oid"), parameters).fetchone()
    if row is None:
        yield error_finding(
            "own-table-missing",
            missing_table_text(name),
            "there are no events",
            _INIT,
        )
        return
    yield from _partition_problems(connection, row[0], name)
    parameters = {"oid": row[0], "publication": settings.database.outbox_publication}
    columns = tuple(
        Column(*column)
        for column in connection.execute(query("describe_columns"), parameters)
    )
    if not columns:
        # There is no such publication, which is a separate finding.
        return
    relation = Relation(row[0], full_name.schema, full_name.table, columns, (), "d")
    try:
        EventWriter(relation, settings.relay.outbox, frozenset(), _ignore)
    except NotPreparedError as problem:
        yield error_finding(
            "outbox-columns",
            f"outbox: {problem}",
            "the relay halts at the next event",
            "add the columns, or name others in [relay.outbox.columns]",
        )


def _ignore(_reason: str) -> None:
    pass
