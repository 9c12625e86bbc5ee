"""
Starts, watches, restarts and stops the platform's processes outside the stack.

A process that ends on its own is restarted after a growing delay, and its restarts are
counted. Parts are started in call order and stopped concurrently; they share one
deadline, after which the remaining processes are killed. Adopted parts, which were
started elsewhere, are watched and restarted, but ``stop`` leaves them running.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from subprocess import SubprocessError
from typing import Final, Self

from towpath.deploy.errors import NotReadyError, PartError
from towpath.deploy.local import lifecycle, process
from towpath.deploy.local.lifecycle import PartStatus, Recovery
from towpath.deploy.local.part import Part, StateFolder
from towpath.schemas.clock import Backoff, Clock, Deadline, SystemClock
from towpath.schemas.failure import TowpathError

_POLL_EVERY_S: Final = 0.2
# A process that has run for this long is stable, and its delays start over.
_STABLE_AFTER_S: Final = 30.0


class Supervisor:
    """
    Watches the parts of one state folder.

    Call order: ``start`` for each part, ``stop`` once. As a context manager, the
    supervisor calls ``stop`` at the end of the block.
    """

    def __init__(
        self,
        state: StateFolder,
        *,
        backoff: Backoff | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._state = state
        self._backoff = backoff or Backoff(first_s=0.5, ceiling_s=10.0)
        self._clock = clock or SystemClock()
        self._parts: dict[str, Part] = {}
        self._adopted: set[str] = set()
        self._restarts: dict[str, int] = {}
        self._attempts: dict[str, int] = {}
        self._started_at_s: dict[str, float] = {}
        self._due_at_s: dict[str, float] = {}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, part: Part) -> None:
        """
        Start a part and watch it; stop any earlier process with its name first.

        This method does not wait until the part is ready: see ``wait_ready``.
        """
        self._state.create()
        with self._lock:
            if self._ending.is_set():
                return
            lifecycle.take_down(part, self._state)
            self._start_process(part)
            self._add_watched(part)

    def adopt(self, part: Part) -> None:
        """Watch a part that is already running; ``stop`` leaves it running."""
        with self._lock:
            if self._ending.is_set():
                return
            self._adopted.add(part.name)
            self._started_at_s[part.name] = self._clock.monotonic_s()
            self._add_watched(part)

    def wait_ready(self, names: Sequence[str] | None = None) -> None:
        """
        Wait until parts answer their probes; a part may be restarted during the wait.

        Raises:
            PartError: A part did not answer in time, and is not recovering either.
        """
        for name in names or list(self._parts):
            part = self._parts[name]
            deadline = Deadline(self._clock, part.ready_within_s)
            recovery = Recovery(part, self._state)
            while not self._ending.is_set():
                try:
                    part.probe()
                    break
                except NotReadyError as error:
                    is_progressing = recovery.is_progressing()
                    if deadline.passed() and not is_progressing:
                        text = lifecycle.failure_text(part, self._state, str(error))
                        raise PartError(text) from error
                self._ending.wait(_POLL_EVERY_S)

    def restarts(self, name: str | None = None) -> int:
        """Return the number of restarts of a part, or of all parts."""
        if name is None:
            return sum(self._restarts.values())
        return self._restarts.get(name, 0)

    def status(self) -> list[PartStatus]:
        """Return the status of every watched part."""
        return [
            lifecycle.status(part.name, self._state, part.port, part.probe)
            for part in list(self._parts.values())
        ]

    def stop(self, within_s: float = 20.0) -> None:
        """
        Stop watching, and concurrently stop all parts that were started here.

        Processes that remain after ``within_s`` are killed.
        """
        self._ending.set()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        with self._lock:
            parts = [
                replace(part, stop_within_s=within_s)
                for name, part in self._parts.items()
                if name not in self._adopted
            ]
            self._parts.clear()
        if parts:
            with ThreadPoolExecutor(len(parts)) as threads:
                list(threads.map(lambda p: lifecycle.take_down(p, self._state), parts))

    def _add_watched(self, part: Part) -> None:
        self._parts[part.name] = part
        self._restarts.setdefault(part.name, 0)
        if self._watcher is None:
            self._watcher = threading.Thread(
                target=self._watch, name="supervisor", daemon=True
            )
            self._watcher.start()

    def _start_process(self, part: Part) -> None:
        part.prepare()
        process.start(part, self._state)
        self._started_at_s[part.name] = self._clock.monotonic_s()
        self._due_at_s.pop(part.name, None)

    def _watch(self) -> None:
        while not self._ending.wait(_POLL_EVERY_S):
            with self._lock:
                for part in list(self._parts.values()):
                    if process.find(self._state.process_file(part.name)) is None:
                        self._restart(part)

    def _restart(self, part: Part) -> None:
        """Restart a part whose process has ended, once its delay is over."""
        now_s = self._clock.monotonic_s()
        name = part.name
        if name not in self._due_at_s:
            if now_s - self._started_at_s[name] >= _STABLE_AFTER_S:
                self._attempts[name] = 0
            self._delay(name)
            # Processes that the part left in its session would disturb its successor.
            process.clean_up_session(self._state.process_file(name))
        elif now_s >= self._due_at_s[name]:
            self._restarts[name] += 1
            try:
                self._start_process(part)
            except (OSError, SubprocessError, TowpathError) as error:
                self._delay(name)
                # On a full disk the reason cannot be written either.
                with suppress(OSError), self._state.log(name).open("a") as log:
                    log.write(f"{name} could not be restarted: {error}\n")

    def _delay(self, name: str) -> None:
        """Schedule a part's restart after its next delay."""
        attempt = self._attempts.get(name, 0)
        self._attempts[name] = attempt + 1
        delay_s = self._backoff.delay_s(attempt)
        self._due_at_s[name] = self._clock.monotonic_s() + delay_s
