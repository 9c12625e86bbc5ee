"""A sink of orders in memory that refuses some, with its dead letters."""

import orjson

from support.dead_letters import Letters, MemoryRefetches, RecordedRepairs, context_of
from towpath.settings import Sink as SinkSettings
from towpath.sinks.apply.batch import BatchWriter
from towpath.sinks.apply.replay import DeadLetterRequests
from towpath.sinks.change import Origin, Record
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.entries import DeadLetterRequest, Subject
from towpath.sinks.dead_letters.parked import OpenDeadLetters, ParkedKeys
from towpath.sinks.errors import BatchRefusedError
from towpath.sinks.targets.memory import MemorySink

TOPIC = "towpath.shop.orders"
FILL = f"{TOPIC}.backfill.cache"
ROUTES = Routes(
    SinkSettings.model_validate(
        {
            "name": "cache",
            "kind": "cache",
            "url": "redis://unused",
            "route": [{"topic": TOPIC, "name": "orders"}],
        }
    )
)
KEY = Subject(TOPIC, b'{"order_id":7}')


class RefusingSink(MemorySink):
    """Refuses rows with a bad note until the test corrects it."""

    def __init__(self):
        super().__init__()
        self.is_mended = False

    def apply(self, batch):
        """Refuse the whole call."""
        rows = (change.row or {} for change in batch.changes)
        if not self.is_mended and any(row.get("note") == "bad" for row in rows):
            message = "the note is too long"
            raise BatchRefusedError(message)
        super().apply(batch)

    @property
    def notes(self):
        """Return the note of each order; that of a tombstone is None."""
        rows = self.rows.get("orders", {})
        return {k: s.row and s.row.get("note") for k, s in rows.items()}


class Shop:
    """A sink, its dead letters, and writers that may crash and restart."""

    def __init__(self, *, can_ask=False, refetches=None):
        self.sink = RefusingSink()
        self.letters = Letters()
        self.repairs = RecordedRepairs(can=can_ask)
        self.parked = ParkedKeys()
        self.refetches = MemoryRefetches() if refetches is None else refetches
        self.begin()

    def begin(self):
        """Start as a driver does, with the state that is in the topic."""
        self.parked = ParkedKeys()
        self.parked.recall(self.letters.entries())
        if isinstance(self.refetches, MemoryRefetches):
            self.refetches = self.refetches.again()
        context = context_of(
            self.letters,
            parked=self.parked,
            repairs=self.repairs,
            refetches=self.refetches,
        )
        self.writer = BatchWriter(ROUTES, self.sink, context)
        self.orders = DeadLetterRequests(
            self.writer, self.letters, self.parked, self.repairs, context.clock
        )
        self.orders.restore(OpenDeadLetters(frozenset()).read(self.letters.entries()))

    def write(self, *records):
        """Write a batch of records."""
        return self.writer.write_records(list(records), 0)

    def ask(self, verb, subject=KEY):
        """Request an action; return the sink's answer."""
        order = DeadLetterRequest(f"{verb}-{len(self.letters.records)}", verb, subject)
        return self.carry_out(order)

    def carry_out(self, order):
        """Let the sink process a request; return its answer."""
        self.letters.request(order)
        self.orders.process()
        return (
            OpenDeadLetters(frozenset()).read(self.letters.entries()).replies[order.id]
        )


def change(number, operation="u", *, order=7, topic=TOPIC, unchanged=None, **after):
    """Make a record; one of a snapshot is below the stream's of the same number."""
    ordinal = "-" if operation == "r" else "0000000000"
    position = f"{number * 8:016x}.{ordinal}"
    headers = {"position": position.encode()}
    if unchanged:
        headers["unchanged"] = orjson.dumps(unchanged)
    row = None if operation == "d" else {"order_id": order, **after}
    value = orjson.dumps({"op": operation, "after": row})
    key = orjson.dumps({"order_id": order})
    return Record(Origin(topic, 0, number), key, value, headers)
