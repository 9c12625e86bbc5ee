"""
What became of the relay's process, as a small file that anyone may read.

``<state>/relay/<slot>.json`` is replaced as a whole when a relay starts, stops or
halts. The source tells whether the slot is followed; only this tells why it is not.
"""

import enum
import json
import os
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog

_LOG: Final = structlog.get_logger("towpath.relay")


class RunState(enum.StrEnum):
    """What a relay's process does, or how it ended."""

    RUNNING = "running"
    STOPPED = "stopped"
    HALTED = "halted"


@dataclass(frozen=True, slots=True)
class ProcessState:
    """
    The relay's process.

    Attributes:
        at: When it came to its state: RFC 3339, UTC.
        reason: Why it halted; empty otherwise.
        remedy: What cures that.
    """

    state: RunState
    at: str
    pid: int
    reason: str = ""
    remedy: str = ""

    @property
    def sentence(self) -> str:
        """Say that it halted, and why; empty if it did not."""
        if self.state is not RunState.HALTED:
            return ""
        return f"halted at {self.at}: {self.reason} ({self.remedy})"


def write_process_state(
    folder: Path, slot: str, state: RunState, now: datetime, **why: str
) -> None:
    """
    Replace the file. A disk that is full must not keep a relay from running.

    Args:
        folder: The state folder.
        slot: The relay's slot.
        state: What the process does now.
        now: The time.
        why: ``reason`` and ``remedy`` of a halt.
    """
    told = ProcessState(state, now.isoformat(timespec="seconds"), os.getpid(), **why)
    path = _path(folder, slot)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(asdict(told)), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        _LOG.warning("relay state file not written", path=str(path), reason=str(error))


def read_process_state(folder: Path, slot: str) -> ProcessState | None:
    """Read what the relay of a slot last wrote here; None if there is nothing."""
    try:
        told = json.loads(_path(folder, slot).read_bytes())
        return ProcessState(**told | {"state": RunState(told["state"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _path(folder: Path, slot: str) -> Path:
    return folder / "relay" / f"{slot}.json"
