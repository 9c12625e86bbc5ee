"""A part as a value: what to run, how to ask it, how to stop it."""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

# For parts with data: what a crash leaves is read within this, or it is not finite.
RECOVERS_WITHIN_S: Final = 1800.0


class User(NamedTuple):
    """Another user that a part runs as, because it refuses to be root."""

    uid: int
    gid: int


def _nothing() -> None:
    """Prepare nothing; ask nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """
    One process and what is known about it.

    Attributes:
        name: Names its log and process file.
        command: Program and arguments.
        folder: Where it runs; must exist after ``prepare``.
        env: Its whole environment.
        port: Where it listens, for showing.
        prepare: Writes what it needs; runs before each start, safe to repeat.
        probe: Asks the part itself; raises ``NotReadyError`` until it serves.
        ready_within_s: How long it may take to serve.
        recovers_within_s: How long it may take if it makes progress meanwhile: its log
            grows, or it reads; for parts that recover their data after a crash.
        stop_signal: Asks for a clean stop.
        stop_within_s: How long that may take before it is killed.
        user: Who runs it, if not who starts it.
    """

    name: str
    command: tuple[str, ...]
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    prepare: Callable[[], None] = _nothing
    probe: Callable[[], None] = _nothing
    ready_within_s: float = 90.0
    recovers_within_s: float = 0.0
    stop_signal: signal.Signals = signal.SIGTERM
    stop_within_s: float = 20.0
    user: User | None = None
