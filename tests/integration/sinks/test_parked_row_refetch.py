"""
A row that is repaired in the source releases its parked key in every kind of sink.
"""

import uuid

import pytest

from support.dead_letters import Letters, StoppedClock
from support.snapshots import SnapshotRig
from support.topics import sink_record
from support.warehouse_tables import engines, session_of
from support.webhook_receiver import SECRET, Answer, Receiver
from towpath.schemas.clock import SystemClock
from towpath.settings import load
from towpath.settings.sink import WebhookOptions
from towpath.sinks.apply.batch import RecordWriter, SinkContext
from towpath.sinks.apply.refetch import PendingRefetches
from towpath.sinks.apply.replay import DeadLetterRequests
from towpath.sinks.apply.sweeps import SafePosition, Sweeps
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.parked import ParkedKeys
from towpath.sinks.engine.session import SparkSql
from towpath.sinks.kafka.client import KafkaRelations, Topics
from towpath.sinks.kafka.repairs import KafkaRepairs
from towpath.sinks.kinds import RoutedRelations, reader_of
from towpath.sinks.targets.search.sink import SearchSink
from towpath.sinks.targets.warehouse.sink import WarehouseSink
from towpath.sinks.targets.webhook.sink import WebhookSink

pytestmark = [pytest.mark.integration]

KINDS = [
    pytest.param("search", marks=pytest.mark.timeout(90)),
    pytest.param("webhook", marks=pytest.mark.timeout(90)),
    pytest.param("warehouse", marks=[pytest.mark.spark, pytest.mark.timeout(180)]),
]
# A change that each target refuses; REPAIRED repairs the row, without the large value.
BAD = {
    "search": "update s.t set n = 'abc' where id = '7'",
    "webhook": "update s.t set n = 'abc' where id = '7'",
    "warehouse": "update s.t set at = 'infinity' where id = '7'",
}
REPAIRED = "update s.t set n = '8', at = '2026-02-28' where id = '7'"
LARGE = 9_000


class Rig(SnapshotRig):
    """A relay, and a sink of one kind that is written as a driver would write it."""

    def prepare(self, kind, url, extra=""):
        """Create the table, start the relay, and describe the sink."""
        self.route = f"s.{uuid.uuid4().hex[:8]}" if kind == "warehouse" else self.prefix
        self.execute("create schema s")
        self.execute(
            "create table s.t (id text primary key, n int, at timestamptz, big text)"
        )
        self.execute("alter table s.t alter big set storage external")
        self.configure(tables=["s.t"])
        text = self.config.read_text().replace(
            "version = 1", f'version = 1\nstate_folder = "{self.folder}"'
        )
        self.config.write_text(
            f'{text}\n[[sink]]\nname = "it"\nkind = "{kind}"\nurl = "{url}"\n{extra}'
            f'[[sink.route]]\ntopic = "{self.prefix}.s.t"\nname = "{self.route}"\n'
        )
        self.init()
        self.start()
        self.execute(
            "insert into s.t values ('7', 7, '2026-01-01', repeat('x', %s))", LARGE
        )
        self.read("s.t", at_least=1)

    def begin(self, make):
        """Make the sink and its record writer, as a driver does."""
        self.settings = settings = load(self.config, {})
        (sink,) = settings.sink
        relations = KafkaRelations(settings.kafka, self.prefix)
        self.target = make(sink, RoutedRelations(relations, sink.route))
        self.target.open()
        self.letters, self.parked = Letters(), ParkedKeys()
        state, cluster = settings.state_folder, Topics(settings.kafka)
        self.refetches = PendingRefetches(state, "it", [self.route], StoppedClock())
        repairs = KafkaRepairs(settings, sink)
        context = SinkContext(
            *(self.letters, self.parked, Sweeps(state, "it", cluster), repairs),
            *(self.refetches, SafePosition(None, StoppedClock()), StoppedClock()),
        )
        self.writer = RecordWriter(Routes(sink), self.target, context)
        self.requests = DeadLetterRequests(
            self.writer, self.letters, self.parked, repairs, StoppedClock()
        )
        self.batch_id = 0

    def deliver(self):
        """Give the new records to the sink; return how many keys are then parked."""
        for name in ("s.t", "s.t.backfill.it"):
            for each in self.new_records(name):
                self.batch_id += 1
                self.writer.write_records([sink_record(each)], self.batch_id)
        self.requests.process()
        return len(self.parked)

    def rows(self):
        """Read the rows in the target."""
        reader = reader_of(self.settings.sink[0], self.settings)
        found = {
            row.key: row.fields for row in reader.rows(self.route) if not row.is_deleted
        }
        reader.close()
        return found


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide a source and its relay."""
    stack.up("postgres", "kafka")
    made = Rig(database, stack.kafka, unique, tmp_path)
    yield made
    if hasattr(made, "target"):
        made.target.close()
    made.close()


@pytest.fixture
def receiver():
    """Provide a receiver that refuses a row with the value ``abc``."""
    made = Receiver()
    made.otherwise = lambda taken: (
        Answer(422)
        if any((c.get("row") or {}).get("n") == "abc" for c in taken.changes)
        else None
    )
    yield made
    made.close()


@pytest.fixture
def begun(request, rig, receiver, stack):
    """Provide a rig whose sink has the first row."""
    kind = request.param
    if kind == "search":
        stack.up("opensearch")
        rig.prepare(kind, stack.opensearch_url)
        rig.begin(
            lambda sink, relations: SearchSink(
                sink.url, sink.route, relations, SystemClock()
            )
        )
    elif kind == "webhook":
        rig.prepare(kind, receiver.url, f'webhook.secrets = ["{SECRET}"]\n')
        options = WebhookOptions(secrets=(SECRET,))
        rig.begin(lambda sink, _: WebhookSink(sink.url, options, SystemClock()))
        rig.rows = lambda: {
            row.key: row.fields
            for row in receiver.rows(rig.route)
            if not row.is_deleted
        }
    else:
        request.getfixturevalue("lake")
        folder = rig.folder / "lake"
        rig.prepare(kind, stack.dsn("warehouse"), f'folder = "{folder}"\n')
        rig.begin(
            lambda sink, relations: WarehouseSink(
                sink, relations, engines(sink, SparkSql(session_of(sink)))
            )
        )
    assert 0 == rig.deliver()
    if kind != "warehouse":
        # A warehouse would hold back the route: its column cannot become text.
        rig.execute("alter table s.t alter n type text")
    rig.kind = kind
    return rig


@pytest.mark.parametrize("begun", KINDS, indirect=True)
def test_a_partial_change_that_repairs_a_row_releases_its_key(begun):
    """The whole row is requested once; after its arrival no refetch is pending."""
    begun.execute(BAD[begun.kind])
    begun.wait_for(lambda: begun.deliver() == 1)
    begun.execute(REPAIRED)
    begun.wait_for(lambda: begun.deliver() == 0)
    (row,) = begun.rows().values()

    assert ("8", "x" * LARGE, 0) == (str(row["n"]), row["big"], len(begun.refetches))
    assert 1 == len(begun.records("s.t.backfill.it"))


@pytest.mark.parametrize("begun", ["search"], indirect=True)
@pytest.mark.timeout(90)
def test_a_delete_of_a_row_that_the_index_cannot_hold_is_applied(begun):
    """
    The overlong key is released with its row, without another dead letter.
    """
    begun.execute("insert into s.t values (repeat('k', 600))")
    begun.wait_for(lambda: begun.deliver() == 1)
    begun.execute("delete from s.t where id <> '7'")
    begun.wait_for(lambda: begun.deliver() == 0)
    reasons = [reason for _, reason in begun.letters.reasons()]

    assert (["7"], 0) == ([*begun.rows()], len(begun.refetches))
    assert ["the key is longer than 512 bytes"] == [r for r in reasons if "key is" in r]
