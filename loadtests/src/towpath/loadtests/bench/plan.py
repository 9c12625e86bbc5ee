"""What is measured: the cases, the systems, the options, and one run of them."""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from rich.console import RenderableType

from towpath.loadtests.bench.broker import Broker
from towpath.loadtests.bench.place import Place
from towpath.loadtests.bench.source import Source
from towpath.schemas.clock import Clock

RELAY: Final = "relay"
LIMIT: Final = "limit"
RECVLOGICAL: Final = "pg_recvlogical"
DEBEZIUM_STOCK: Final = "debezium_stock"
DEBEZIUM_TUNED: Final = "debezium_tuned"

# Rows a transaction, and transactions a second.
DRAINS: Final = MappingProxyType({"drain_1": 1, "drain_100": 100})
STEADIES: Final = MappingProxyType(
    {"steady_500": 500, "steady_2000": 2000, "steady_5000": 5000}
)
CASES: Final = (*DRAINS, *STEADIES)

Tell = Callable[[int], None]


class Screen(Protocol):
    """Where it is told how far things are."""

    def say(self, line: str) -> None:
        """Tell something that stays."""

    def show(self, case: RenderableType) -> None:
        """Print the table of a case that has ended."""

    def begin(self, what: str, total: int) -> Tell:
        """Begin a step; what is returned takes how much of it is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """
    What the caller chooses.

    Attributes:
        rows: The backlog of a drain.
        rounds: How often each case is run with each system.
        duration_s: How long a steady load is measured.
        warm_up_s: How long it goes on before that.
        cases: Which cases.
        with_debezium: Whether Debezium is measured beside.
    """

    rows: int = 300_000
    rounds: int = 3
    duration_s: float = 20.0
    warm_up_s: float = 10.0
    cases: tuple[str, ...] = CASES
    with_debezium: bool = False

    @property
    def publishers(self) -> tuple[str, ...]:
        """The systems that write to Kafka."""
        others = (DEBEZIUM_STOCK, DEBEZIUM_TUNED) if self.with_debezium else ()
        return (RELAY, *others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all runs share."""

    place: Place
    options: Options
    broker: Broker
    screen: Screen
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One system in one round of one case; slot, topics and log have its name."""

    system: str
    name: str
    source: Source
    is_steady: bool = False

    @property
    def topic(self) -> str:
        """Where a publisher puts the events."""
        return f"{self.name}.event.bench"


def in_turn(systems: tuple[str, ...], round_number: int) -> tuple[str, ...]:
    """Alternate the order: what heats the machine up must not always come first."""
    return systems if round_number % 2 == 0 else systems[::-1]
