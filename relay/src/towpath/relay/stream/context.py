"""The parts that the loop and the stream's consumers share in one session."""

from dataclasses import dataclass

from towpath.relay.encode.router import Router
from towpath.relay.publish.in_flight import DeliveryLedger
from towpath.relay.publish.publisher import Publisher
from towpath.relay.snapshot.visibility import InvisibleTransactions
from towpath.relay.stats import Stats
from towpath.relay.stream.relations import RelationAnnouncer
from towpath.schemas.clock import Clock


@dataclass(frozen=True, slots=True)
class LoopContext:
    """
    The middle of one connection's lifetime.

    Attributes:
        ledger: The deliveries in flight.
        invisible: Which streamed transactions may be invisible yet.
        outlet: Publishes records.
        router: Which records a change gives.
        relations: Announced relations.
        stats: Counters, across connections.
        clock: The time.
    """

    ledger: DeliveryLedger
    invisible: InvisibleTransactions
    publisher: Publisher
    router: Router
    relations: RelationAnnouncer
    stats: Stats
    clock: Clock

    def now_us(self) -> int:
        """Return the wall time in microseconds since 1970."""
        return int(self.clock.now().timestamp() * 1_000_000)
