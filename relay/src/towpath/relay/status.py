"""``towpath relay status``: how far the relay is, as source and state topic tell it."""

from datetime import datetime
from typing import Any

from towpath.relay.lineage import parse_lineages
from towpath.relay.postgres.catalog import PostgresCatalog
from towpath.relay.postgres.connect import connect, translated
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.source_checks import source_problems
from towpath.relay.postgres.table_report import report
from towpath.relay.process_state import read_process_state
from towpath.relay.state import parse_state
from towpath.relay.state_reading import newest
from towpath.relay.state_view import confirmed, slot
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import TowpathError
from towpath.settings import Settings


def how_it_is(settings: Settings, clock: Clock | None = None) -> dict[str, Any]:
    """
    Return how far the relay is, as the source and the state topic tell it.

    Raises:
        SourceUnavailableError: The source does not answer; it is the one who must.
    """
    source = settings.database
    with connect(source.dsn) as connection:
        facts = PostgresCatalog(connection).slot(source.slot)
        with translated("reading the end of the log"):
            row = connection.execute(query("read_log_end")).fetchone()
        tables = report(connection, settings)
        problems = source_problems(connection, settings)
    told: dict[str, Any] = {"slot": source.slot, "exists": facts is not None}
    if facts is not None:
        told |= slot(facts) or {}
        told["lag_bytes"] = max(0, int(row[0] if row else 0) - facts.confirmed_lsn)
    told["source_problems"] = [str(each) for each in problems]
    told["dropped_tables"] = list(tables.dropped)
    told["changed_keys"] = dict(tables.changed_keys)
    told["tables_without_snapshot"] = dict(tables.unreadable)
    process = read_process_state(settings.state_folder, source.slot)
    if process is not None and not told.get("active"):
        told["relay"] = process.sentence or process.state.value
    return told | _state_status(settings, clock or SystemClock())


def _state_status(settings: Settings, clock: Clock) -> dict[str, Any]:
    try:
        state = parse_state(newest(settings))
        lineages = parse_lineages(state.lineage)
    except TowpathError as error:
        return {"state": f"unknown: {error}"}
    told: dict[str, Any] = {"state": "known" if lineages else "empty"}
    if lineages:
        gap = lineages[-1].gap
        told["lineage"] = lineages[-1].number
        told["gap"] = None if gap is None else gap.reason
    stored = confirmed(state)
    if state.confirmed is not None and stored is not None:
        age = clock.now() - datetime.fromisoformat(state.confirmed.at)
        told["stored_lsn"] = stored["lsn"]
        told["published_log_lsn"] = stored["published_log_lsn"]
        told["stopped_cleanly"] = state.confirmed.is_clean
        told["marks_age_s"] = round(max(0.0, age.total_seconds()), 1)
    told["pending_skips"] = len(state.skips)
    return told
