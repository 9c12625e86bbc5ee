"""The counts of a run so far, from locust's own statistics, as JSON for others."""

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from locust.stats import RequestStats

from towpath.loadtests import users
from towpath.loadtests.percentile import Latency
from towpath.loadtests.sample import CHECKOUT as SAMPLED_CHECKOUT

_POST: Final = "POST"
METHODS: Final = ("GET", _POST)


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
        not_started: Arrivals that found too many others under way.
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
    not_started: int
    reasons: dict[str, int]
    checkout: Latency
    elapsed_s: float
    finished: bool


def load_report(stats: RequestStats, *, elapsed_s: float, finished: bool) -> LoadReport:
    """Sum up what the users did, those of all processes; the sampler's do not count."""
    settled = {
        what: _done(stats, what) + _done(stats, users.RETURN + what)
        for what in (users.PAY, users.CANCEL)
    }
    placed = stats.entries.get((users.CHECKOUT, _POST))
    times_ms = [
        time_ms
        for time_ms, count in (placed.response_times if placed else {}).items()
        for _ in range(count)
    ]
    return LoadReport(
        checkouts=_done(stats, users.CHECKOUT),
        payments=settled[users.PAY],
        cancellations=settled[users.CANCEL],
        conflicts=sum(
            entry.num_requests
            for (name, _), entry in stats.entries.items()
            if name.endswith(users.TOO_LATE)
        ),
        failures=sum(
            entry.num_failures
            for (name, kind), entry in stats.entries.items()
            if kind in METHODS and name != SAMPLED_CHECKOUT
        ),
        not_started=sum(
            entry.num_failures
            for (_, kind), entry in stats.entries.items()
            if kind == users.ARRIVAL
        ),
        reasons={
            f"{failure.name}: {failure.error}": failure.occurrences
            for failure in stats.errors.values()
        },
        checkout=Latency.of(times_ms),
        elapsed_s=elapsed_s,
        finished=finished,
    )


def write(load: LoadReport, lag: Mapping[str, Any], path: Path) -> None:
    """Replace the file in one step, so that a reader never sees half a report."""
    beside = path.with_name(f"{path.name}.new")
    document = {"load": dataclasses.asdict(load), "lag": lag}
    beside.write_text(json.dumps(document), encoding="utf-8")
    os.replace(beside, path)  # noqa: PTH105 - says what it does: replace


def _done(stats: RequestStats, name: str) -> int:
    # Looked up with get, it would become a row of the tables.
    entry = stats.entries.get((name, _POST))
    return entry.num_requests - entry.num_failures if entry else 0
