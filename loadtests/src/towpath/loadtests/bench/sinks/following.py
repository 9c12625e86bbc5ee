"""
What a sink says of itself while it catches up, read from the files that it keeps.

``progress.json`` has what was applied and when that was durable; the engine's log of
offsets dates its first batch. Both are facts that are there anyway: nobody is asked.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

_BATCH_BEGAN: Final = "batchTimestampMs"
_MS: Final = 1000.0


class Applied(NamedTuple):
    """
    How far a sink is.

    Attributes:
        records: Records that it has applied.
        at_ms: When the last batch of them was durable.
        batches: How many there were.
        retries: How often something failed and was tried again.
        dead_letters: Records that were set aside.
        error: Why it does not run, if it does not.
    """

    records: int
    at_ms: float
    batches: int
    retries: int
    dead_letters: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Follower:
    """Reads the files of one sink."""

    folder: Path
    topic: str

    def applied(self) -> Applied:
        """Return how far the sink is; one that has written nothing is at the start."""
        document = _document(self.folder / "progress.json")
        if not document:
            return Applied(0, 0.0, 0, 0, 0, None)
        offsets: Mapping[str, int] = document["applied"].get(self.topic, {})
        at = datetime.fromisoformat(document["updated_at"])
        return Applied(
            sum(offsets.values()),
            at.timestamp() * _MS,
            document["batches"],
            document["retries"],
            document["dead_letters"],
            document["error"],
        )

    def first_batch_ms(self) -> float | None:
        """Return when the engine began its first batch, as soon as it has."""
        path = self.folder / "checkpoint" / "offsets" / "0"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            return float(json.loads(lines[1])[_BATCH_BEGAN])
        except (OSError, ValueError, IndexError):
            # Not there yet, or not whole yet.
            return None


def _document(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return {}
    return document
