"""The context of a chaos run: its environment, options, screen and result."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from rich.console import Console
from rich.status import Status

from towpath.loadtests.bench.environment import Launcher
from towpath.schemas.clock import Clock

RELAY: Final = "relay"
BACKEND: Final = "backend"
VICTIMS: Final = (RELAY, BACKEND)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosEnvironment:
    """
    All that a chaos run is given.

    Attributes:
        dsn: An empty database; its user must be a superuser.
        kafka: The broker's bootstrap address.
        prefix: Of topics; also the slot's name.
        towpath: The words that begin a command of ``towpath``.
        folder: For the configuration file.
        env: The whole environment of the relay.
        launcher: Starts processes.
    """

    dsn: str
    kafka: str
    prefix: str
    towpath: tuple[str, ...]
    folder: Path
    env: Mapping[str, str]
    launcher: Launcher
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """
    What the caller chooses.

    Attributes:
        minutes: For how long new rounds begin.
        seed: What the actors draw from.
        kill: Who is killed: ``relay``, ``backend``.
        ddl: Whether tables are altered.
        round_s: How long everybody is at work before a round is judged.
        rows: Of each table, at first.
        writers: Sessions that write.
        late: Whether some commits wait for a standby that is not there.
    """

    minutes: float
    seed: int
    kill: tuple[str, ...] = VICTIMS
    ddl: bool = True
    round_s: float = 20.0
    rows: int = 3000
    writers: int = 5
    late: bool = True


_LINE_EVERY_S: Final = 10.0


class ChaosScreen(Protocol):
    """Takes what is so now, and what stays."""

    def show(self, line: str) -> None:
        """Show how far it is."""

    def log(self, line: str) -> None:
        """Tell something that stays."""


class QuietScreen:
    """Shows nothing; what stays is kept."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def show(self, line: str) -> None:
        """Show nothing."""

    def log(self, line: str) -> None:
        """Keep it."""
        self.lines.append(line)


class LiveChaosScreen:
    """A spinner with a line; without a terminal a line every few seconds."""

    def __init__(self, console: Console, status: Status, clock: Clock) -> None:
        self._console = console
        self._status = status
        self._clock = clock
        self._logged_at_s = float("-inf")

    def show(self, line: str) -> None:
        """Show it in place of the last."""
        if self._console.is_terminal:
            self._status.update(line)
        elif self._clock.monotonic_s() - self._logged_at_s >= _LINE_EVERY_S:
            self._logged_at_s = self._clock.monotonic_s()
            self.log(line)

    def log(self, line: str) -> None:
        """Print it above."""
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)


@contextmanager
def open_screen(console: Console, clock: Clock) -> Iterator[LiveChaosScreen]:
    """Show a live line for the block."""
    with console.status("starting") as status:
        yield LiveChaosScreen(console, status, clock)


@dataclass(slots=True)
class ChaosResult:
    """
    Counts, and what was wrong; nothing was if there are no findings.

    Attributes:
        options: What was asked for.
        settings: What the seed gave the relay.
        rounds: How many were judged.
        elapsed_s: From the first step to the last judgement.
        written: Transactions, by kind.
        altered: Alterations, by kind.
        killed: By victim.
        signals: Signals, by what became of them.
        not_completed: Signals that did not, with their reasons.
        reads: READ rows delivered.
        streamed: Changes delivered.
        findings: What was wrong, in sentences.
        warnings: What the relay warned of, with its count.
    """

    options: ChaosOptions
    settings: Mapping[str, str | int]
    rounds: int = 0
    elapsed_s: float = 0.0
    written: Counter[str] = field(default_factory=Counter)
    altered: Counter[str] = field(default_factory=Counter)
    killed: Counter[str] = field(default_factory=Counter)
    signals: Counter[str] = field(default_factory=Counter)
    not_completed: dict[str, str] = field(default_factory=dict)
    reads: int = 0
    streamed: int = 0
    findings: list[str] = field(default_factory=list)
    warnings: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Whether nothing was wrong."""
        return not self.findings

    def line(self) -> str:
        """Tell it all in one line."""
        verdict = "equal" if self.is_equal else f"{len(self.findings)} findings"
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        return (
            f"seed {self.options.seed} ({settings}): {verdict} after"
            f" {self.rounds} rounds in {self.elapsed_s:.0f} s; {self.reads:,} READ rows"
            f" and {self.streamed:,} changes delivered, {total(self.written):,}"
            f" transactions, {total(self.altered)} alterations,"
            f" {self.killed.total()} kills, {_counts_text(self.signals)} signals"
        )

    def as_json(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return {
            "seed": self.options.seed,
            "settings": dict(self.settings),
            "equal": self.is_equal,
            "rounds": self.rounds,
            "elapsed_s": round(self.elapsed_s, 1),
            "reads": self.reads,
            "streamed": self.streamed,
            "written": dict(self.written),
            "shaped": dict(self.altered),
            "killed": dict(self.killed),
            "asked": dict(self.signals),
            "not_completed": self.not_completed,
            "findings": self.findings,
            "warnings": dict(self.warnings),
        }


def total(counts: Counter[str]) -> int:
    """Count what was done, without what the server refused."""
    return sum(n for name, n in counts.items() if not name.startswith("refused"))


def _counts_text(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "no"
