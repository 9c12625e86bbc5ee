"""
What the steps share: the plan, where the platform is, the screen, the clock.

A step is announced, timed and, when it ends, told in one line. Every wait has a
deadline and says what was waited for.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from towpath.deploy.demo.errors import StepError
from towpath.deploy.demo.plan import Options, Plan
from towpath.deploy.demo.screen import Screen
from towpath.deploy.local.addresses import Addresses
from towpath.deploy.local.folders import StateFolder
from towpath.deploy.local.stack import Stack
from towpath.deploy.local.supervisor import Supervisor
from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.failure import UnavailableError
from towpath.settings import Settings, Source, load

_LOOK_EVERY_S: Final = 0.2

# A killed part is back, its data recovered, in half of it.
_PART_BACK_WITHIN_S: Final = 60.0

Value = TypeVar("Value")


class Joined(NamedTuple):
    """Where a platform is that others run: its configuration and its orders service."""

    config: Path
    shop_url: str


@dataclass(slots=True, kw_only=True)
class Stage:
    """
    Everything a step needs, whoever runs the platform.

    Attributes:
        state: The demo's own state folder.
        config: The configuration that every process of the platform reads.
        shop_url: The orders service.
        environment: What processes of the demo are started with.
        restarts: Tells how often a part, or all of them, was started again.
        step: What is being done now, for the screen.
    """

    options: Options
    plan: Plan
    state: StateFolder
    config: Path
    shop_url: str
    environment: Mapping[str, str]
    restarts: Callable[..., int]
    screen: Screen
    clock: Clock
    began_at_s: float
    step: str = "starting"

    @property
    def shop_dsn(self) -> str:
        """The source database."""
        return self.source().dsn

    def settings(self) -> Settings:
        """Read the configuration as it is now."""
        return load(self.config, {})

    def source(self) -> Source:
        """The shop's database and its relay's slot."""
        return self.settings().database

    def elapsed_s(self) -> float:
        """Return the seconds since the demo began."""
        return self.clock.monotonic_s() - self.began_at_s

    def tell(self, line: str) -> None:
        """Tell something that stays on the screen."""
        self.screen.say(f"[dim]{self.elapsed_s():6.1f} s[/dim]  {line}")

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Announce a step; tell what it took when it is done."""
        self.step = what
        began_at_s = self.elapsed_s()
        yield
        self.tell(f"{what} [dim]({self.elapsed_s() - began_at_s:.1f} s)[/dim]")

    def until(self, condition: Callable[[], bool], what: str, within_s: float) -> None:
        """
        Wait until a condition holds; while a part is away, it does not.

        Raises:
            StepError: It does not in time; ``what`` completes "waited for".
            UnavailableError: A part was away until the end.
        """
        deadline = Deadline(self.clock, within_s)
        while not self.patiently(condition, deadline.remaining_s()):
            if deadline.passed():
                message = (
                    f"waited {within_s:.0f} s for {what}; logs: {self.state.root}/logs"
                )
                raise StepError(message)
            self.clock.wait(_LOOK_EVERY_S)

    def patiently(
        self, ask: Callable[[], Value], within_s: float = _PART_BACK_WITHIN_S
    ) -> Value:
        """
        Return an answer; ask again while a part is away, because it will be back.

        Raises:
            UnavailableError: It was not back in time.
        """
        deadline = Deadline(self.clock, within_s)
        while True:
            try:
                return ask()
            except UnavailableError as error:
                if deadline.passed() or isinstance(error, StepError):
                    raise
            self.clock.wait(_LOOK_EVERY_S)

    def pause(self, duration_s: float) -> None:
        """Let time pass, for the viewer and the load."""
        self.clock.wait(duration_s)


@dataclass(slots=True, kw_only=True)
class OwnStage(Stage):
    """
    A stage whose platform is the demo's own: the local stack and what runs beside it.

    Attributes:
        ports: Ports of the processes that are not part of the stack, by name.
    """

    stack: Stack
    supervisor: Supervisor
    ports: dict[str, int]

    @property
    def addresses(self) -> Addresses:
        """Where the stack's parts can be reached."""
        return self.stack.addresses()
