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
    Addresses, programs and folders of a chaos run.

    Attributes:
        dsn: An empty database; its user must be a superuser.
        kafka: The broker's bootstrap address.
        prefix: The prefix of topics, and the name of the slot.
        towpath: The beginning of a ``towpath`` command line.
        folder: The folder of the configuration file.
        launcher: Starts processes.
        clock: Measures deadlines.
    """

    dsn: str
    kafka: str
    prefix: str
    towpath: tuple[str, ...]
    folder: Path
    launcher: Launcher
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """
    The options of a chaos run.

    Attributes:
        minutes: For how many minutes new rounds are started.
        seed: The seed of all actors.
        kill: The victims: ``relay``, ``backend``.
        ddl: Whether tables are altered.
        round_s: How long all actors run before a round is checked.
        rows: Initial rows of each table.
        writers: Number of sessions that write.
        late: Whether some commits wait for a standby that does not exist.
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
    """Shows the current progress, and permanent lines."""

    def show(self, line: str) -> None:
        """Show the current progress."""

    def log(self, line: str) -> None:
        """Print a permanent line."""


class QuietScreen:
    """Shows nothing, and keeps the lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def show(self, line: str) -> None:
        """Show nothing."""

    def log(self, line: str) -> None:
        """Keep the line."""
        self.lines.append(line)


class LiveChaosScreen:
    """A spinner with a line; without a terminal, a line every few seconds."""

    def __init__(self, console: Console, status: Status, clock: Clock) -> None:
        self._console = console
        self._status = status
        self._clock = clock
        self._logged_at_s = float("-inf")

    def show(self, line: str) -> None:
        """Replace the current line."""
        if self._console.is_terminal:
            self._status.update(line)
        elif self._clock.monotonic_s() - self._logged_at_s >= _LINE_EVERY_S:
            self._logged_at_s = self._clock.monotonic_s()
            self.log(line)

    def log(self, line: str) -> None:
        """Print a line above the spinner."""
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)


@contextmanager
def open_screen(console: Console, clock: Clock) -> Iterator[LiveChaosScreen]:
    """Show a live line during the block."""
    with console.status("starting") as status:
        yield LiveChaosScreen(console, status, clock)


@dataclass(slots=True)
class ChaosResult:
    """
    The counts and findings of a run; a run without findings was correct.

    Attributes:
        options: The options of the run.
        settings: The relay's settings, drawn from the seed.
        rounds: Rounds that were checked.
        elapsed_s: Seconds from the start until the last round was delivered.
        written: Transactions, by kind.
        altered: Alterations, by kind.
        killed: Steps that killed a process, by victim; a relay may be killed twice in
            one step.
        signals: Signals, by their final status.
        not_completed: Signals that did not complete, with their reasons.
        reads: READ rows delivered.
        streamed: Changes delivered.
        findings: Differences and failures, as sentences.
        warnings: Warnings of the relay, with their counts.
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
    def verified(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def text(self) -> str:
        """Return the findings, the signals that did not complete, and the summary."""
        unfinished = (
            f"{i} did not complete: {w}" for i, w in self.not_completed.items()
        )
        return "\n".join([*self.findings, *unfinished, self.line()])

    def line(self) -> str:
        """Return a summary in one line."""
        verdict = "equal" if self.verified else f"{len(self.findings)} findings"
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        return (
            f"seed {self.options.seed} ({settings}): {verdict} after"
            f" {self.rounds} rounds in {self.elapsed_s:.0f} s; {self.reads:,} READ rows"
            f" and {self.streamed:,} changes delivered, {total(self.written):,}"
            f" transactions, {total(self.altered)} alterations,"
            f" {total(self.killed)} kills, {_counts_text(self.signals)} signals"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the result as one JSON object."""
        return {
            "seed": self.options.seed,
            "settings": dict(self.settings),
            "equal": self.verified,
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
    """Count the steps that the server did not refuse; safe while the actor runs."""
    steps = dict(counts)
    return sum(n for name, n in steps.items() if not name.startswith("refused"))


def _counts_text(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "no"
