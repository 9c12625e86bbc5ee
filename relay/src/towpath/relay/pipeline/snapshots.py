"""
Between the loop and the snapshot driver: facts in, effects out.

What the loop does itself (rows, notifications) is done at once, in stream order; the
rest is for the worker, whose answers come back as facts in the loop's own time.
"""

from typing import Final

from towpath.relay.pipeline.core import Core
from towpath.relay.ports import SnapshotReader
from towpath.relay.routing.notification import notification
from towpath.relay.routing.table import TableRoute
from towpath.relay.snapshot.driver import SnapshotDriver
from towpath.relay.snapshot.effects import (
    Effect,
    EmitRows,
    Notify,
    ProbeVisibility,
)
from towpath.relay.snapshot.facts import (
    Delivered,
    Fact,
    SignalStored,
    Tick,
    VisibilityRead,
)
from towpath.schemas import topics

# How stale the confirmed position may be for want of knowing what is visible. One
# query of a few microseconds each; ten times rarer only keeps log for longer.
PROBE_INTERVAL_S: Final = 0.1

# The driver counts time by ticks; its own pace is no finer.
TICK_INTERVAL_S: Final = 0.02

# Acknowledgements are taken in between, so that they do not pile up behind a chunk.
_ROWS_BETWEEN_POLLS: Final = 500


class Snapshots:
    """Tells the driver what happens, and does what it answers."""

    def __init__(
        self, core: Core, driver: SnapshotDriver, reader: SnapshotReader
    ) -> None:
        self.recorders = driver.recorders
        self._core = core
        self._driver = driver
        self._reader = reader
        self._is_probing = False
        self._probed_at_s = float("-inf")
        self._ticked_at_s = float("-inf")
        self._route: TableRoute | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the loop should come by often."""
        return self._driver.is_busy or bool(self._core.invisible.count)

    def resume(self) -> None:
        """Take up what is stored. Call order: before the first stream message."""
        self.tell(self._reader.read_stored())

    def tell(self, fact: Fact) -> None:
        """Tell the driver, and do what it wants done."""
        for effect in self._driver.on(fact):
            self._perform(effect)

    def turn(self, now_s: float) -> None:
        """Bring facts that came in the meantime; ask for some."""
        core = self._core
        for fact in self._reader.facts():
            if isinstance(fact, SignalStored):
                core.ledger.release(fact.signal_id)
            elif isinstance(fact, VisibilityRead):
                self._is_probing = False
            self.tell(fact)
        for chunk_id in core.ledger.take_delivered():
            self.tell(Delivered(chunk_id))
        if self._driver.is_busy and now_s - self._ticked_at_s >= TICK_INTERVAL_S:
            self._ticked_at_s = now_s
            self.tell(Tick(now_s))
        if core.invisible.count and now_s - self._probed_at_s >= PROBE_INTERVAL_S:
            self.probe(now_s)

    def probe(self, now_s: float) -> None:
        """Ask which transactions are visible, unless an answer is on its way."""
        if not self._is_probing:
            self._is_probing = True
            self._probed_at_s = now_s
            self._reader.submit(ProbeVisibility())

    def _perform(self, effect: Effect) -> None:
        match effect:
            case EmitRows():
                self._emit(effect)
            case Notify():
                self._notify(effect)
            case _:
                self._reader.submit(effect)

    def _emit(self, effect: EmitRows) -> None:
        core = self._core
        now_us = core.now_us()
        core.shapes.announce(effect.relation, effect.log_lsn, now_us // 1000)
        route = self._route_of(effect)
        topic = route.topic
        if effect.target is not None:
            topic = topics.backfill_topic(topic, effect.target)
        delivery = core.ledger.begin_chunk(effect.chunk_id)
        for count, row in enumerate(effect.rows, start=1):
            record = route.read(row, effect.log_lsn, effect.snapshot_id, topic, now_us)
            core.outlet.send(record, delivery)
            if count % _ROWS_BETWEEN_POLLS == 0:
                core.outlet.poll(0)
        core.ledger.end_chunk(effect.chunk_id)
        core.tally.snapshot_rows += len(effect.rows)

    def _route_of(self, effect: EmitRows) -> TableRoute:
        route = self._route
        if route is None or route.relation != effect.relation:
            route = self._route = self._core.router.table(effect.relation)
        return route

    def _notify(self, effect: Notify) -> None:
        core = self._core
        record = notification(
            core.router.place.prefix,
            effect.snapshot_id,
            effect.type,
            effect.additional_data,
            core.now_us() // 1000,
        )
        core.outlet.send(record)
