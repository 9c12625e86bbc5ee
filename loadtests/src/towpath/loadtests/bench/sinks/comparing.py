"""``towpath verify``, in a process of its own, and what it found, in a few words."""

import json
import subprocess
from collections.abc import Mapping
from typing import Any, Final

from towpath.loadtests.bench.errors import BenchError
from towpath.loadtests.bench.sinks.backlog import Backlog

_LEAST_WITHIN_S: Final = 180.0
_SLOWEST_PER_S: Final = 1_000


def findings(backlog: Backlog, sink: str) -> tuple[str, ...]:
    """
    Compare a sink with the source, and name what differs; the relay must run.

    Raises:
        BenchError: It could not be told.
    """
    bench = backlog.bench
    bench.screen.begin(f"comparing {sink} with the table", 0)
    words = (*bench.place.towpath, "verify", sink, "--json")
    within_s = _LEAST_WITHIN_S + backlog.rows / _SLOWEST_PER_S
    try:
        done = subprocess.run(  # noqa: S603 - our own words
            (*words, "--config", str(backlog.config)),
            cwd=bench.place.folder,
            env=dict(bench.place.env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=within_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        message = f"{sink} was not compared within {within_s:.0f} s"
        raise BenchError(message) from error
    try:
        return read_findings(json.loads(done.stdout), backlog.rows)
    except (ValueError, KeyError, TypeError) as error:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        message = f"{sink} could not be compared: {said}"
        raise BenchError(message) from error


def read_findings(document: Mapping[str, Any], rows: int) -> tuple[str, ...]:
    """
    Name what a report finds wrong; too few rows compared is wrong as well.

    Raises:
        BenchError: It proves nothing, neither way.
    """
    differences, routes = document["differences"], document["routes"]
    compared = sum(route["source_rows"] for route in routes)
    found = [f"{differences:,} differences"] if differences else []
    if not found and document["result"] != "equal":
        doubts = [route["error"] or "restless keys" for route in routes]
        why = document.get("error") or "; ".join(doubts)
        message = f"{document['sink']} could not be compared: {why}"
        raise BenchError(message)
    if compared != rows:
        found.append(f"{compared:,} rows compared instead of {rows:,}")
    return tuple(found)
