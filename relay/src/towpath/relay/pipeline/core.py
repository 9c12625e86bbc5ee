"""What the loop and its desks share; made anew for every connection."""

from dataclasses import dataclass

from towpath.relay.delivery import DeliveryLedger
from towpath.relay.pipeline.outlet import Outlet
from towpath.relay.pipeline.shapes import Shapes
from towpath.relay.routing.router import Router
from towpath.relay.snapshot.visibility import InvisibleTransactions
from towpath.relay.tally import Tally
from towpath.schemas.clock import Clock


@dataclass(frozen=True, slots=True)
class Core:
    """
    The middle of one connection's lifetime.

    Attributes:
        ledger: What Kafka has acknowledged.
        invisible: Which streamed transactions may be invisible yet.
        outlet: The way out.
        router: Which records a change gives.
        shapes: Which shapes are told.
        tally: What is counted, across connections.
        clock: The time.
    """

    ledger: DeliveryLedger
    invisible: InvisibleTransactions
    outlet: Outlet
    router: Router
    shapes: Shapes
    tally: Tally
    clock: Clock

    def now_us(self) -> int:
        """Return the wall time in microseconds since 1970."""
        return int(self.clock.now().timestamp() * 1_000_000)
