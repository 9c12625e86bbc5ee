"""An in-memory sink that refuses some orders, with its dead letters."""

import dataclasses

import orjson

from support.dead_letters import Letters, MemoryRefetches, RecordedRepairs, context_of
from support.record_table import table_of
from support.slice_tasks import ListedTasks, batch_rows
from towpath.settings import Sink as SinkSettings
from towpath.sinks.apply import task
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.apply.replay import DeadLetterRequests
from towpath.sinks.change import Origin, Record
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.entries import DeadLetterRequest, Subject
from towpath.sinks.dead_letters.parked import OpenDeadLetters, ParkedKeys
from towpath.sinks.engine.executors import Executors
from towpath.sinks.engine.writer import SinkWriter
from towpath.sinks.errors import BatchRefusedError, TargetUnavailableError
from towpath.sinks.tally import Tally
from towpath.sinks.targets.memory import MemorySink

TOPIC = "towpath.shop.orders"
FILL = f"{TOPIC}.backfill.cache"
SINK = SinkSettings.model_validate(
    {
        "name": "cache",
        "kind": "cache",
        "url": "redis://unused",
        "spread_from_records": 1,
        "route": [{"topic": TOPIC, "name": "orders"}],
    }
)
ROUTES = Routes(SINK)
# The share of executors' sinks that end in the middle of a batch.
SHARE_DYING = 0.2
KEY = Subject(TOPIC, b'{"order_id":7}')


class RefusingSink(MemorySink):
    """Refuses rows with a bad note until the test repairs the sink."""

    def __init__(self):
        super().__init__()
        self.is_repaired = False
        self.reason = "the note is too long"
        # The key of a row that cannot be written now.
        self.unavailable = None
        self.floors = {}

    def learn(self, route, floor):
        """Read a floor that the target has stored."""
        self._floors.learn(route, floor)

    def apply(self, batch):
        """Apply the batch, or refuse it as a whole."""
        for floor in batch.floors:
            known = self.floors.get(floor.route, "")
            self.floors[floor.route] = max(known, floor.position)
        if self.unavailable in {str(change.key[0]) for change in batch.changes}:
            message = "the row's server is down"
            raise TargetUnavailableError(message)
        rows = (change.row or {} for change in batch.changes)
        if not self.is_repaired and any(row.get("note") == "bad" for row in rows):
            raise BatchRefusedError(self.reason)
        super().apply(batch)

    def restart(self):
        """Lose the counts of a process that died; the target keeps its rows."""
        self._tally = Tally()

    @property
    def notes(self):
        """Return the note of each order; that of a tombstone is None."""
        rows = self.rows.get("orders", {})
        return {k: s.row and s.row.get("note") for k, s in rows.items()}


class DyingSink(RefusingSink):
    """Ends in the middle of its first batch."""

    def apply(self, batch):
        """Apply the first half."""
        half = batch.changes[: len(batch.changes) // 2]
        super().apply(dataclasses.replace(batch, changes=half))
        message = "the executor has ended"
        raise RuntimeError(message)


class Shop:
    """
    A sink, its dead letters, and writers that may crash and restart.

    Batches are written record by record; with ``in_slices``, as one slice in the
    driver; with an ``rng`` as well, by tasks on executors (see ``ListedTasks``).
    """

    def __init__(
        self,
        *,
        accepts_repairs=False,
        refetches=None,
        in_slices=False,
        rng=None,
        settings=SINK,
    ):
        self.settings = settings
        self.sink = RefusingSink()
        self.in_slices = in_slices
        self.rng = rng
        self.letters = Letters()
        self.repairs = RecordedRepairs(accepts=accepts_repairs)
        self.parked = ParkedKeys()
        self.refetches = MemoryRefetches() if refetches is None else refetches
        self.begin()

    def begin(self):
        """Start as a driver does, with the state that is in the topic."""
        self.sink.restart()
        self.parked = ParkedKeys()
        self.parked.restore(self.letters.entries())
        if isinstance(self.refetches, MemoryRefetches):
            self.refetches = self.refetches.again()
        context = context_of(
            self.letters,
            parked=self.parked,
            repairs=self.repairs,
            refetches=self.refetches,
        )
        self.context = context
        self.writer = RecordWriter(Routes(self.settings), self.sink, context)
        executors = None
        if self.rng is not None:
            task.close_sink(self.settings.name)
            executors = Executors(
                *(self.settings, self.on_executor),
                task.AbandonedTasks(context.clock, is_first_run=True),
            )
        self.slices = SinkWriter(self.writer, self.sink, context, executors)
        self.requests = DeadLetterRequests(
            self.writer, self.letters, self.parked, self.repairs, context.clock
        )
        self.requests.restore(OpenDeadLetters(frozenset()).read(self.letters.entries()))

    def write(self, *records):
        """Write a batch of records."""
        if not self.in_slices:
            return self.writer.write_records(list(records), 0)
        tasks = ListedTasks(table_of(records), self.rng)
        floors = dict(self.sink.floors)
        result = self.slices.write(batch_rows(table_of(records), tasks), 0)
        # Executors may finish abandoned attempts even now, unless the batch had a
        # floor: the driver applies none until they no longer can (``AbandonedTasks``).
        if floors == self.sink.floors:
            for run in tasks.abandoned:
                run()
        return result

    def on_executor(self):
        """Make an executor's sink on the same target, with the target's floors."""
        made = DyingSink() if self.rng.random() < SHARE_DYING else RefusingSink()
        made.rows, made.is_repaired = self.sink.rows, self.sink.is_repaired
        for floor in self.sink.floors.items():
            made.learn(*floor)
        return made

    def ask(self, verb, subject=KEY):
        """Request an action; return the sink's answer."""
        request = DeadLetterRequest(
            f"{verb}-{len(self.letters.records)}", verb, subject
        )
        return self.carry_out(request)

    def carry_out(self, request):
        """Have the sink process a request; return its answer."""
        self.letters.request(request)
        self.requests.process()
        return (
            OpenDeadLetters(frozenset())
            .read(self.letters.entries())
            .replies[request.id]
        )


def change(number, operation="u", *, order=7, topic=TOPIC, unchanged=None, **after):
    """Make a record; a snapshot's is below the stream's record with the same number."""
    ordinal = "-" if operation == "r" else "0000000000"
    position = f"{number * 8:016x}.{ordinal}"
    headers = {"position": position.encode()}
    if unchanged:
        headers["unchanged"] = orjson.dumps(unchanged)
    row = None if operation == "d" else {"order_id": order, **after}
    value = orjson.dumps({"op": operation, "after": row})
    key = orjson.dumps({"order_id": order})
    return Record(Origin(topic, 0, number), key, value, headers)
