"""What the caller of the benchmark of sinks chooses."""

from collections.abc import Sequence
from dataclasses import dataclass

from towpath.loadtests.bench.sinks.plan import ROWS, SINKS
from towpath.schemas.failure import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """
    What the caller chooses.

    Attributes:
        cases: Which cases.
        sinks: Which sinks catch up.
        rows: The backlog; the shop has as many old orders, 50,000 at most.
        rates: Checkouts a second, one rate after the other.
        duration_s: How long each rate is measured.
        warm_up_s: How long it goes on before that.
    """

    cases: Sequence[str]
    sinks: Sequence[str] = SINKS
    rows: int = ROWS
    rates: Sequence[float] = (20.0,)
    duration_s: float = 60.0
    warm_up_s: float = 20.0


def rates_of(text: str) -> tuple[float, ...]:
    """
    Read rates that stand between commas.

    Raises:
        UsageError: One of them is none.
    """
    words = text.split(",")
    try:
        rates = tuple(map(float, words))
    except ValueError:
        rates = ()
    if not rates or min(rates) <= 0:
        message = f"{text!r} is no list of rates, such as 20,40,60"
        raise UsageError(message)
    return rates
