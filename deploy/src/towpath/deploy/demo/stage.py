"""
The stage of a demo: its plan, the platform's addresses, the screen, the clock.

A step is announced and timed, and reported in one line when it ends. Every wait has a
deadline and names its condition. The plan is made before the demo begins: the new
sink's snapshot must be slow enough that rows inside its key range change while it runs,
so its pace follows from the wanted changes and the rate at which old orders are
settled.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from towpath.deploy.demo.screen import DemoScreen
from towpath.deploy.errors import StepError
from towpath.deploy.local.part import StateFolder
from towpath.deploy.local.stack import Addresses, Stack
from towpath.deploy.local.supervisor import Supervisor
from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.failure import UnavailableError
from towpath.settings import Settings, Source, load

# The number of orders that exist before the slot is created.
DEFAULT_ORDERS: Final = 50_000

# The number of rows inside the key range that must change during the snapshot.
WANTED_CHANGES: Final = 100

# The snapshot lasts long enough for 50 % more changes, because responses are late under
# load and some orders change twice.
_MARGIN: Final = 1.5

# Old orders settled per checkout, and the minimum per second: 150 changes in 30 s. Each
# is a saga, and two cores cannot handle more in addition to the checkouts.
_SETTLE_SHARE: Final = 0.4
_MIN_SETTLE_RATE: Final = 5.0

# At most a tenth of the orders can change before the open ones run out.
_CHANGEABLE_SHARE: Final = 0.1

# The minimum pace, because the load's new orders are read, too.
_MIN_ROWS_PER_S: Final = 100

# Long enough for a steady state, short enough for a viewer.
_LOAD_BEFORE_NEW_SINK_SHARE: Final = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The viewer's options."""

    rate: float = 10.0
    orders: int = DEFAULT_ORDERS
    duration_s: float = 40.0
    keep: bool = False
    json_file: Path | None = None
    before_verify: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """
    The rates and times that follow from the options.

    Attributes:
        settle_rate: Old orders settled per second, inside the snapshot's key range.
        new_sink_after_s: Load time before the new sink is declared.
        max_rows_per_second: The pace of the snapshot.
        wanted_changes: Rows of the key range that must change during the snapshot.
        load_s: Minimum duration of the load.
        sample_after_s: Load time before the first latency sample.
        sample_for_s: Duration of the samples; 0: until the load ends.
    """

    settle_rate: float
    new_sink_after_s: float
    max_rows_per_second: int
    wanted_changes: int
    load_s: float
    sample_after_s: float = 0.0
    sample_for_s: float = 0.0


def make_plan(options: DemoOptions) -> DemoPlan:
    """Return the rates and times for the options."""
    settle_rate = max(_MIN_SETTLE_RATE, options.rate * _SETTLE_SHARE)
    wanted = min(WANTED_CHANGES, int(options.orders * _CHANGEABLE_SHARE))
    snapshot_s = max(1.0, wanted * _MARGIN / settle_rate)
    return DemoPlan(
        settle_rate=settle_rate,
        new_sink_after_s=options.duration_s * _LOAD_BEFORE_NEW_SINK_SHARE,
        max_rows_per_second=max(
            _MIN_ROWS_PER_S, math.ceil(options.orders / snapshot_s)
        ),
        wanted_changes=wanted,
        load_s=options.duration_s,
    )


_POLL_EVERY_S: Final = 0.2

# A killed part recovers its data and serves again within half of this time.
_PART_BACK_WITHIN_S: Final = 60.0

Value = TypeVar("Value")


class JoinedPlatform(NamedTuple):
    """
    An existing platform that the demo joins.

    Attributes:
        config: The platform's configuration.
        shop_url: The address of the orders service.
        overrides: The environment variables that override the configuration.
    """

    config: Path
    shop_url: str
    overrides: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class Stage:
    """
    Everything that a step needs, on the demo's own platform or an existing one.

    Attributes:
        state: The demo's own state folder.
        config: The configuration that every process of the platform reads.
        shop_url: The orders service.
        environment: The environment of the demo's processes.
        restarts: Returns the number of restarts of a part, or of all parts.
        overrides: The environment variables that override the configuration.
        step: The current step, for the screen.
    """

    options: DemoOptions
    plan: DemoPlan
    state: StateFolder
    config: Path
    shop_url: str
    environment: Mapping[str, str]
    restarts: Callable[..., int]
    screen: DemoScreen
    clock: Clock
    began_at_s: float
    overrides: Mapping[str, str] = field(default_factory=dict)
    step: str = "starting"

    @property
    def shop_dsn(self) -> str:
        """The address of the source database."""
        return self.source().dsn

    def settings(self) -> Settings:
        """Read the current configuration."""
        return load(self.config, self.overrides)

    def source(self) -> Source:
        """Return the shop's database, with the relay's slot."""
        return self.settings().database

    def elapsed_s(self) -> float:
        """Return the seconds since the demo began."""
        return self.clock.monotonic_s() - self.began_at_s

    def set_rate(self, rate: float) -> None:
        """Set the checkout rate of the next load."""
        self.options = replace(self.options, rate=rate)

    def announce(self, step: str) -> None:
        """Show a step as the current one."""
        self.step = step

    def report(self, line: str) -> None:
        """Print a line that remains on the screen."""
        self.screen.print(f"[dim]{self.elapsed_s():6.1f} s[/dim]  {line}")

    @contextmanager
    def timed_step(self, step: str) -> Iterator[None]:
        """Announce a step; report its duration at its end."""
        self.announce(step)
        began_at_s = self.elapsed_s()
        yield
        self.report(f"{step} [dim]({self.elapsed_s() - began_at_s:.1f} s)[/dim]")

    def until(self, condition: Callable[[], bool], what: str, within_s: float) -> None:
        """
        Wait until a condition holds; while a part is unavailable, it counts as unmet.

        Raises:
            StepError: The condition did not hold in time; ``what`` completes "waited
                for".
            UnavailableError: A part was still unavailable when the time was up.
        """
        deadline = Deadline(self.clock, within_s)
        while not self.retried(condition, deadline.remaining_s()):
            if deadline.passed():
                message = (
                    f"waited {within_s:.0f} s for {what}; logs: {self.state.root}/logs"
                )
                raise StepError(message)
            self.clock.wait(_POLL_EVERY_S)

    def retried(
        self, read: Callable[[], Value], within_s: float = _PART_BACK_WITHIN_S
    ) -> Value:
        """
        Return the result of ``read``; retry while a part is unavailable.

        Raises:
            UnavailableError: The part was unavailable for too long.
        """
        deadline = Deadline(self.clock, within_s)
        while True:
            try:
                return read()
            except UnavailableError as error:
                if deadline.passed() or isinstance(error, StepError):
                    raise
            self.clock.wait(_POLL_EVERY_S)

    def pause(self, duration_s: float) -> None:
        """Wait, so that the viewer can watch and the load can run."""
        self.clock.wait(duration_s)


@dataclass(slots=True, kw_only=True)
class OwnStage(Stage):
    """
    A stage on the demo's own platform: the local stack and the demo's processes.

    Attributes:
        ports: Ports of the demo's processes, by name.
    """

    stack: Stack
    supervisor: Supervisor
    ports: dict[str, int]

    @property
    def addresses(self) -> Addresses:
        """The addresses of the stack's parts."""
        return self.stack.addresses()
