"""
Lag in locust's statistics: the sampler's results become rows beside the requests.

One process of a run has a sampler: locust's only one, or the master. The row ``LAG
cache`` has one entry for each order that readers of the cache found, with the time
since its commit; an order that they did not find in time is a failure of that row.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import gevent
from gevent import subprocess as cooperative

from towpath.loadtests.errors import TargetUnavailableError
from towpath.loadtests.load import samples
from towpath.schemas.clock import Clock

LAG: Final = "LAG"
# Not imported: its drivers are heavy, and this process runs the load.
_SAMPLER: Final = "towpath.loadtests.load.sampler"
_POST: Final = "POST"
_LOOK: Final = "LOOK"

# Three drivers connect one after another, on a machine that may be busy.
_READY_WITHIN_S: Final = 60.0
_END_WITHIN_S: Final = samples.LAST_SAMPLES_TIMEOUT_S + 30.0

# Fires locust's request event: type, name, milliseconds, failure.
Fire = Callable[[str, str, float | None, Exception | None], None]


class LostSampleError(Exception):
    """An order that readers of a sink did not find in time."""


class LagSample(NamedTuple):
    """The first read of an order in a sink: when, and how long after its commit."""

    at_s: float
    sink: str
    lag_ms: float


class LagSampling:
    """The sampler's process, from the check of the targets to the last sample."""

    def __init__(self, config: Mapping[str, object], fire: Fire, clock: Clock) -> None:
        """
        Start the process, and wait until it has checked every target.

        Raises:
            TargetUnavailableError: A target cannot be sampled.
        """
        self.report: dict[str, Any] = {}
        self.samples: list[LagSample] = []
        self._fire = fire
        self._clock = clock
        self._listener: gevent.Greenlet | None = None
        self._is_abandoned = False
        self._process = cooperative.Popen(
            [sys.executable, "-m", _SAMPLER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C is for locust, which still waits for the last samples.
            start_new_session=True,
        )
        self._send(json.dumps(config))
        self._check(self._first_line())

    def start(self) -> None:
        """Begin to place orders and to poll the targets."""
        self._send(samples.START)
        self._listener = gevent.spawn(self._listen)

    def finish(self) -> None:
        """Stop placing orders, wait for the last samples, and end the process."""
        self._send(samples.STOP)
        if self._listener is not None:
            self._listener.join(timeout=_END_WITHIN_S)
        if not self._is_abandoned and not self.report.get("finished"):
            failure = LostSampleError("the sampler ended before its last samples")
            self._fire(LAG, "sampler", None, failure)
        self.close()

    def abandon(self) -> None:
        """Discard the last samples although ``finish`` still waits for them."""
        self._is_abandoned = True
        self._process.kill()

    def close(self) -> None:
        """End the process at once."""
        if self._listener is not None:
            self._listener.kill()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()

    def _first_line(self) -> Mapping[str, str]:
        first = f'{{"error": "nothing answered within {_READY_WITHIN_S:.0f} s"}}'
        with gevent.Timeout(_READY_WITHIN_S, exception=False):
            first = self._process.stdout.readline()
        found: Mapping[str, str] = json.loads(first or "{}")
        return found

    def _check(self, first: Mapping[str, str]) -> None:
        if "ready" in first:
            return
        self.close()
        reason = "the sampler ended unexpectedly; its output above has the reason"
        raise TargetUnavailableError(first.get("error", reason))

    def _send(self, line: str) -> None:
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # It has ended: its last line, or the lack of one, gives the reason.
            return

    def _listen(self) -> None:
        for line in self._process.stdout:
            if self._is_abandoned:
                return
            for kind, facts in json.loads(line).items():
                self._take(kind, facts)
            if self.report.get("finished"):
                return

    def _take(self, kind: str, facts: Any) -> None:  # noqa: ANN401 - JSON
        if kind == "report":
            self.report = facts
        elif kind == "seen":
            sink, lag_ms = facts
            self.samples.append(LagSample(self._clock.monotonic_s(), sink, lag_ms))
            self._fire(LAG, sink, lag_ms, None)
        elif kind == "lost":
            self._fire(LAG, facts, None, LostSampleError("not readable in time"))
        elif kind == "placed":
            self._fire(_POST, samples.CHECKOUT, facts, None)
        else:
            name, reason = facts
            is_checkout = name == samples.CHECKOUT
            self._fire(_POST if is_checkout else _LOOK, name, None, OSError(reason))
