"""What a load run has done so far, as the JSON that others read."""

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from towpath.loadtests.percentile import Latency


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """
    Requests by what they did; ``failures`` holds every answer that is no success.

    Attributes:
        checkouts: Orders placed.
        payments: Orders paid, old ones included.
        cancellations: Orders cancelled, old ones included.
        conflicts: Requests that came too late for the order's state (409): no failure.
        failures: Requests without an answer, or with another status than 2xx and 409.
        reasons: The failures by request and reason, with their count.
        checkout: How long placing an order took.
        elapsed_s: Since the first user began.
        finished: The users have stopped; nothing will be added.
    """

    checkouts: int
    payments: int
    cancellations: int
    conflicts: int
    failures: int
    reasons: dict[str, int]
    checkout: Latency
    elapsed_s: float
    finished: bool


def write(report: object, path: Path) -> None:
    """Replace the file in one step, so that a reader never sees half a report."""
    if not dataclasses.is_dataclass(report) or isinstance(report, type):
        message = "a report is a dataclass"
        raise TypeError(message)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(json.dumps(dataclasses.asdict(report)), encoding="utf-8")
    os.replace(beside, path)  # noqa: PTH105 - says what it does: replace
