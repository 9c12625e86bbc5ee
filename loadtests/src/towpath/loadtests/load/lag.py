"""
Lag in Locust's statistics: the sampler's results become rows next to the requests.

One process of a run has a sampler: Locust's only process, or the master. The row ``LAG
cache`` has one entry for each order that readers of the cache found, with the time
since its commit; an order that they did not find in time counts as a failure.

The sampler runs in its own process, because the client libraries it loads are large.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import gevent
from gevent import subprocess as cooperative

from towpath.loadtests.errors import TargetUnavailableError
from towpath.loadtests.load import samples
from towpath.schemas.clock import Clock

LAG: Final = "LAG"
_SAMPLER: Final = "towpath.loadtests.load.sampler"
_POST: Final = "POST"
_LOOK: Final = "LOOK"

_END_WITHIN_S: Final = samples.LAST_SAMPLES_TIMEOUT_S + 30.0

# Clients connect one after another, on a machine that may be busy.
_READY_WITHIN_S: Final = 60.0

# Fires Locust's request event: type, name, milliseconds, failure.
Fire = Callable[[str, str, float | None, Exception | None], None]


class SideProcess:
    """
    A module that runs in a process next to Locust's, and exchanges lines with it.

    The first line of the module's input is a JSON document; each further line is one
    word. Each line of its output is a JSON document. The first of these is
    ``{"error": ...}`` if the module cannot do its work.
    """

    def __init__(self, module: str, config: Mapping[str, object]) -> None:
        """Start the module, and write its configuration."""
        self._process = cooperative.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C is for Locust, which still waits for the last lines.
            start_new_session=True,
        )
        self.send(json.dumps(config))

    def first_line(self) -> Mapping[str, Any]:
        """Return the first document, or one whose ``error`` explains its absence."""
        first = f'{{"error": "no response within {_READY_WITHIN_S:.0f} s"}}'
        with gevent.Timeout(_READY_WITHIN_S, exception=False):
            first = self._process.stdout.readline()
        ended = "the process ended unexpectedly; its output above has the reason"
        found: Mapping[str, Any] = json.loads(first or json.dumps({"error": ended}))
        return found

    def documents(self) -> Iterator[Mapping[str, Any]]:
        """Yield the following documents until the process ends."""
        for line in self._process.stdout:
            yield json.loads(line)

    def send(self, line: str) -> None:
        """Write a line; do nothing if the process has ended."""
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # The last line gives the reason; a missing line is reported, too.
            return

    def kill(self) -> None:
        """End the process; its last lines can still be read."""
        self._process.kill()

    def close(self) -> None:
        """End the process immediately."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # Closing flushes input that the ended process did not read.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


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
        self._process = SideProcess(_SAMPLER, config)
        first = self._process.first_line()
        if "error" in first:
            self.close()
            raise TargetUnavailableError(first["error"])

    def start(self) -> None:
        """Begin placing orders and polling the targets."""
        self._process.send(samples.START)
        self._listener = gevent.spawn(self._listen)

    def finish(self) -> None:
        """Stop placing orders, wait for the last samples, and end the process."""
        self._process.send(samples.STOP)
        if self._listener is not None:
            self._listener.join(timeout=_END_WITHIN_S)
        if not self._is_abandoned and not self.report.get("finished"):
            failure = LostSampleError("the sampler ended before its last samples")
            self._fire(LAG, "sampler", None, failure)
        self.close()

    def abandon(self) -> None:
        """Discard the last samples, even while ``finish`` waits for them."""
        self._is_abandoned = True
        self._process.kill()

    def close(self) -> None:
        """End the process immediately."""
        if self._listener is not None:
            self._listener.kill()
        self._process.close()

    def _listen(self) -> None:
        for document in self._process.documents():
            if self._is_abandoned:
                return
            for kind, content in document.items():
                self._take(kind, content)
            if self.report.get("finished"):
                return

    def _take(self, kind: str, content: Any) -> None:  # noqa: ANN401 - JSON
        if kind == "report":
            self.report = content
        elif kind == "seen":
            sink, lag_ms = content
            self.samples.append(LagSample(self._clock.monotonic_s(), sink, lag_ms))
            self._fire(LAG, sink, lag_ms, None)
        elif kind == "lost":
            self._fire(LAG, content, None, LostSampleError("not readable in time"))
        elif kind == "placed":
            self._fire(_POST, samples.CHECKOUT, content, None)
        else:
            name, reason = content
            is_checkout = name == samples.CHECKOUT
            self._fire(_POST if is_checkout else _LOOK, name, None, OSError(reason))
