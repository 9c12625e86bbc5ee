"""
``towpath relay status``: the relay's progress, from the source and the state topic.

The file ``<state>/relay/<slot>.json`` holds the state of the relay's process. It is
replaced when a relay starts, stops or halts. The source shows whether a relay is
following the slot; only this file shows why none is.
"""

import enum
import json
import os
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import structlog

from towpath.relay.commands.state import (
    confirmed_document,
    newest_values,
    slot_document,
)
from towpath.relay.postgres.catalog import PostgresCatalog
from towpath.relay.postgres.connect import connect, translated_errors
from towpath.relay.postgres.known_tables import report_tables
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.source_checks import source_problems
from towpath.relay.recovery.lineage import parse_lineages
from towpath.relay.recovery.state import parse_state
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import TowpathError
from towpath.settings import Settings

_LOG: Final = structlog.get_logger("towpath.relay")


class RunState(enum.StrEnum):
    """The states of a relay's process."""

    RUNNING = "running"
    STOPPED = "stopped"
    HALTED = "halted"


@dataclass(frozen=True, slots=True)
class ProcessState:
    """
    The stored state of the relay's process.

    Attributes:
        at: The time of the last change, as RFC 3339 in UTC.
        reason: Why the process halted; empty otherwise.
        remedy: The remedy of a halt.
    """

    state: RunState
    at: str
    pid: int
    reason: str = ""
    remedy: str = ""

    @property
    def sentence(self) -> str:
        """A sentence about a halt and its reason; empty without a halt."""
        if self.state is not RunState.HALTED:
            return ""
        return f"halted at {self.at}: {self.reason} ({self.remedy})"


def write_process_state(
    folder: Path, slot: str, state: RunState, now: datetime, **why: str
) -> None:
    """
    Replace the state file; only log a failure: a full disk must not stop the relay.

    Args:
        folder: The state folder.
        slot: The relay's slot.
        state: The process's state.
        now: The current time.
        why: ``reason`` and ``remedy`` of a halt.
    """
    document = ProcessState(
        state, now.isoformat(timespec="seconds"), os.getpid(), **why
    )
    path = _path(folder, slot)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(asdict(document)), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        _LOG.warning("relay state file not written", path=str(path), reason=str(error))


def read_process_state(folder: Path, slot: str) -> ProcessState | None:
    """Return the stored state of a slot's relay; None if there is no valid file."""
    try:
        document = json.loads(_path(folder, slot).read_bytes())
        return ProcessState(**document | {"state": RunState(document["state"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _path(folder: Path, slot: str) -> Path:
    return folder / "relay" / f"{slot}.json"


def relay_status(settings: Settings, clock: Clock | None = None) -> dict[str, Any]:
    """
    Return the relay's progress, from the source and the state topic.

    Raises:
        SourceUnavailableError: The source cannot be reached.
    """
    source = settings.database
    with connect(source.dsn) as connection:
        facts = PostgresCatalog(connection).slot(source.slot)
        with translated_errors("reading the end of the log"):
            row = connection.execute(query("read_log_end")).fetchone()
        tables = report_tables(connection, settings)
        problems = source_problems(connection, settings)
    document: dict[str, Any] = {"slot": source.slot, "exists": facts is not None}
    if facts is not None:
        document |= slot_document(facts) or {}
        document["lag_bytes"] = max(0, int(row[0] if row else 0) - facts.confirmed_lsn)
    document["source_problems"] = [str(each) for each in problems]
    document["dropped_tables"] = list(tables.dropped)
    document["changed_keys"] = dict(tables.changed_keys)
    document["tables_without_snapshot"] = dict(tables.unreadable)
    process = read_process_state(settings.state_folder, source.slot)
    if process is not None and not document.get("active"):
        document["relay"] = process.sentence or _without_slot(process)
    return document | _state_status(settings, clock or SystemClock())


def _without_slot(process: ProcessState) -> str:
    """Describe a process that does not hold its slot, and has not halted."""
    if process.state is not RunState.RUNNING or _exists(process.pid):
        return process.state.value
    return f"ended without a report: process {process.pid}, started at {process.at}"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # The process belongs to another user.
        pass
    return True


def _state_status(settings: Settings, clock: Clock) -> dict[str, Any]:
    try:
        state = parse_state(newest_values(settings))
        lineages = parse_lineages(state.lineage)
    except TowpathError as error:
        return {"state": f"unknown: {error}"}
    document: dict[str, Any] = {"state": "known" if lineages else "empty"}
    if lineages:
        gap = lineages[-1].gap
        document["lineage"] = lineages[-1].number
        document["gap"] = None if gap is None else gap.reason
    stored = confirmed_document(state)
    if state.confirmed is not None and stored is not None:
        age = clock.now() - datetime.fromisoformat(state.confirmed.at)
        document["stored_lsn"] = stored["lsn"]
        document["published_log_lsn"] = stored["published_log_lsn"]
        document["stopped_cleanly"] = state.confirmed.is_clean
        document["marks_age_s"] = round(max(0.0, age.total_seconds()), 1)
    document["pending_skips"] = len(state.skips)
    return document
