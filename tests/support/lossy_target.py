"""A source, its relay and a target that lost rows, in any order of events."""

from copy import deepcopy

from hypothesis import strategies as st

from support.copying import replace
from support.dead_letters import MemoryRefetches, RecordedRepairs
from support.dying_process import repeat
from support.parked_shop import FILL, SINK, Shop, change
from towpath.schemas import headers
from towpath.sinks.apply.refetch import ROUTE_AGAIN_AFTER_S

KEYS = (7,)
LARGE = ("note", "bio")
# The columns that a change leaves out; in most cases, all large ones.
KEPT = st.sampled_from([LARGE, (), ("note",), ("bio",), LARGE])
# The numbers of records in a batch: of the stream's topic, and of the sink's own.
SIZES = st.sampled_from([(3, 3), (1, 0), (2, 0), (0, 1), (0, 2), (1, 1)])


class SetClock:
    """A clock that shows the time that a test has set."""

    now_s = 0.0

    def monotonic_s(self):
        """Return the time."""
        return self.now_s


class LossyTarget:
    """
    A source, its relay, and a cache that lost its last writes.

    With ``by_key``, rows can be requested by key; without it, only all rows at once.

    Attributes:
        rows: The source's rows, by key.
        logs: The records of the stream's topic and of the sink's own.
        at: The offset up to which each log has been read.
    """

    def __init__(self, draw, *, by_key, settings=SINK, in_slices=False, rng=None):
        self._draw = draw
        self.rows = dict.fromkeys(KEYS)
        self.logs = ([], [])
        self.at = [0, 0]
        self.clock = SetClock()
        self.shop = Shop(
            refetches=MemoryRefetches(clock=self.clock),
            settings=settings,
            in_slices=in_slices,
            rng=rng,
        )
        self.shop.repairs = RecordedRepairs(
            by_key=by_key, reading=self.shop.refetches.reading
        )
        self.shop.begin()
        self._committed = 0
        self._answered = 0
        self._filled = 0
        self._is_filling = False
        self._lose()

    def commit(self):
        """Change a row; unchanged large columns are left out."""
        self._committed += 1
        number = self._committed
        key = self._draw(st.sampled_from(KEYS))
        before = self.rows[key]
        if before and self._draw(st.integers(0, 9)) == 9:
            self.rows[key] = None
            self._append(0, change(number, "d", order=key))
            return
        kept = self._draw(KEPT) if before else ()
        changed = {name: f"{number}" for name in (*LARGE, "status") if name not in kept}
        self.rows[key] = (before or {}) | changed
        operation = "u" if before else "c"
        record = change(number, operation, order=key, unchanged=sorted(kept), **changed)
        self._append(0, record)

    def read(self, keys=KEYS):
        """Read rows for the sink, at a position above everything committed."""
        position = f"{(self._committed + 1) * 8:016x}.-".encode()
        for key in keys:
            row = self.rows[key]
            operation = "d" if row is None else "r"
            record = change(0, operation, order=key, topic=FILL, **(row or {}))
            if row is not None or not self._is_filling:
                self._append(1, _at(record, position))
        return position

    def fill(self, snapshot="lost"):
        """Read all rows while the source changes; then sweep."""
        self._is_filling = True
        floor = self.read()
        for _ in range(self._draw(st.integers(0, 2))):
            self.commit()
        self._is_filling = False
        sweep = change(0, "t", topic=FILL)
        values = {headers.SWEEP: floor, headers.SNAPSHOT: snapshot.encode()}
        self._append(1, replace(sweep, headers=values))

    def answer(self):
        """Read the rows that the sink has requested."""
        requested = self.shop.repairs.keys[self._answered :]
        self._answered += len(requested)
        for _, (key,) in requested:
            self.read([key])
        for number in range(self._filled, len(self.shop.repairs.routes)):
            self._filled += 1
            self.fill(f"repair-{number + 1}")

    def request_overdue(self):
        """Request overdue rows after a long time without a batch."""
        self.clock.now_s += ROUTE_AGAIN_AFTER_S

        def step():
            self.shop.writer.request_overdue()

        repeat(self.shop, step)

    def deliver(self, *sizes):
        """Hand a batch to the sink; if the sink dies, it gets the same batch again."""
        batch = []
        for number, size in enumerate(sizes):
            begin = self.at[number]
            batch += self.logs[number][begin : begin + size]
            self.at[number] = min(begin + size, len(self.logs[number]))
        repeat(self.shop, lambda: self.shop.write(*batch))
        for record in batch:
            snapshot = record.headers.get(headers.SNAPSHOT, b"").decode()
            if snapshot == "lost":
                self.shop.refetches.routes.clear()
            elif snapshot == self.shop.refetches.reading.get("orders"):
                self.shop.refetches.reading.clear()

    def finish(self):
        """Finish all pending work."""
        self.request_overdue()
        self.answer()
        while self.at != [len(log) for log in self.logs]:
            self.deliver(*self._draw(SIZES))
            self.request_overdue()
            self.answer()

    def _append(self, log, record):
        origin = replace(record.origin, offset=len(self.logs[log]))
        self.logs[log].append(replace(record, origin=origin))

    def _lose(self):
        """Reset the target to an earlier state; its route counts as lost."""
        for _ in range(self._draw(st.integers(1, 2))):
            self.commit()
        self.deliver(9, 0)
        kept = deepcopy(self.shop.sink.rows)
        for _ in range(self._draw(st.integers(1, 2))):
            self.commit()
        self.deliver(9, 0)
        # Changed in place: open sinks on executors share the target.
        self.shop.sink.rows.clear()
        self.shop.sink.rows.update(kept)
        self.shop.refetches.routes.add("orders")


def _at(record, position):
    return replace(record, headers={**record.headers, "position": position})
