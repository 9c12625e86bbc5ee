"""A real relay refetches rows that no signal can list, by reading the whole table."""

import json

import pytest

from support.dead_letters import Letters, StoppedClock
from support.snapshots import SnapshotRig
from support.topics import headers_of, read_to_end, sink_record
from towpath.deploy.sinks.filling import SinkFill, carry_out_fill
from towpath.schemas.clock import SystemClock
from towpath.settings import load
from towpath.sinks.apply.batch import RecordWriter, SinkContext
from towpath.sinks.apply.refetch import PendingRefetches
from towpath.sinks.apply.sweeps import SafePosition, Sweeps
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.parked import ParkedKeys
from towpath.sinks.kafka.client import Topics
from towpath.sinks.kafka.repairs import KafkaRepairs
from towpath.sinks.state import incomplete
from towpath.sinks.targets.memory import MemorySink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

TABLES = {
    "chosen": (
        "id int, code text unique, primary key (id, code)",
        "(7, 'a'), (8, 'b')",
    ),
    "listed": ("id int[] primary key, code text", "('{7,1}', 'a'), ('{8,1}', 'b')"),
    "composed": ("id s.place primary key, code text", "('(7,1)', 'a'), ('(8,1)', 'b')"),
}
LARGE = 9_000
# Larger than the limit of a record.
TOO_LARGE = 2_000_000
SECTIONS = """
[relay.rows.key_columns]
"s.chosen" = ["code"]
[[sink]]
name = "it"
kind = "cache"
url = "redis://unused"
"""


class Rig(SnapshotRig):
    """A relay, and a sink that receives only changes made after the setup."""

    def prepare(self):
        """Create the tables with a large value in each row, and start the relay."""
        self.execute("create schema s")
        self.execute("create type s.place as (a int, b int)")
        names = [*TABLES, "plain"]
        routes = (
            f'[[sink.route]]\ntopic = "{self.prefix}.s.{name}"\nname = "{name}"\n'
            for name in names
        )
        self.configure(SECTIONS + "".join(routes), tables=[f"s.{n}" for n in names])
        text = self.config.read_text().replace(
            "version = 1", f'version = 1\nstate_folder = "{self.folder}"'
        )
        self.config.write_text(text)
        for name, (columns, keys) in TABLES.items():
            self.execute(f"create table s.{name} ({columns}, v int, note text)")
            self.execute(f"alter table s.{name} alter note set storage external")
            self.execute(
                f"insert into s.{name} (id, code) values {keys}"  # noqa: S608 - our own
            )
            self.execute(
                f"update s.{name} set note = repeat('x', {LARGE})"  # noqa: S608 - our own
            )
        self.execute("create table s.plain (id int primary key, v int, note text)")
        self.execute("alter table s.plain alter note set storage external")
        self.execute("insert into s.plain select 7, 0, repeat('x', %s)", TOO_LARGE)
        self.init()
        self.start()
        self.begin()

    def begin(self):
        """Make the sink's record writer, as a driver does."""
        settings = load(self.config, {})
        (self.sink,) = settings.sink
        self.target, self.letters = MemorySink(), Letters()
        self.parked = ParkedKeys()
        state, name = settings.state_folder, self.sink.name
        routes = [route.name for route in self.sink.route]
        self.refetches = PendingRefetches(state, name, routes, StoppedClock())
        context = SinkContext(
            *(self.letters, self.parked),
            Sweeps(state, name, Topics(settings.kafka)),
            *(KafkaRepairs(settings, self.sink), self.refetches),
            *(SafePosition(None, StoppedClock()), StoppedClock()),
        )
        self.writer = RecordWriter(Routes(self.sink), self.target, context)

    def fill(self, collection):
        """
        Fill the sink as its commands do; return the status and the rows read so far.
        """
        source, clock = load(self.config, {}).database, SystemClock()
        fill = SinkFill("fill-it", (collection,))
        outcome = carry_out_fill(source, self.sink, fill, clock, lambda _: None)
        return outcome.status, outcome.detail["rows"]

    def deliver(self, name):
        """Give the new records of a topic to the sink."""
        found = self.new_records(name)
        self.writer.write_records([sink_record(each) for each in found], 0)
        self.writer.request_overdue()


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide tables whose rows no signal can list, and a relay that follows them."""
    stack.up("postgres", "kafka")
    made = Rig(database, stack.kafka, unique, tmp_path)
    try:
        made.prepare()
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("table", TABLES)
def test_a_row_that_no_signal_can_list_arrives_complete(rig, table):
    """One request, which reads the table once, suffices; then no refetch is pending."""
    rig.execute(f"update s.{table} set v = 1 where code = 'a'")  # noqa: S608 - our own
    (update,) = rig.read(f"s.{table}", at_least=1)
    backfill = f"s.{table}.backfill.it"
    rig.deliver(f"s.{table}")
    pending = len(rig.refetches), incomplete.routes(rig.folder, "it")

    def is_settled():
        rig.deliver(backfill)
        return not incomplete.routes(rig.folder, "it")

    rig.wait_for(is_settled)
    rig.deliver(backfill)
    requested = read_to_end(rig.kafka, f"{rig.prefix}-signal")
    signals = [json.loads(each.value())["data"] for each in requested]
    stored = [one.row for one in rig.target.rows[table].values()]
    rows = {row["code"]: (row["v"], len(row["note"])) for row in stored}

    assert ["note"] == json.loads(headers_of(update)["unchanged"])
    assert ((1, (table,)), 0, []) == (
        pending,
        len(rig.refetches),
        rig.letters.reasons(),
    )
    assert {"a": (1, LARGE), "b": (None, LARGE)} == rows
    assert [{"data-collections": [f"s.{table}"], "sweep": True, "target": "it"}] == (
        signals
    )


def test_a_row_that_cannot_be_delivered_is_parked_instead_of_pending(rig):
    """
    A partial change becomes a dead letter if the whole row cannot be delivered.

    Changes to other rows are applied. Once the row can be delivered, filling the sink
    again reads just this row, which releases its key.
    """
    backfill = "s.plain.backfill.it"
    rig.execute("update s.plain set v = 1 where id = 7")
    rig.read("s.plain", at_least=1)
    rig.deliver("s.plain")
    pending = len(rig.refetches)

    def is_parked():
        rig.deliver(backfill)
        return bool(len(rig.parked))

    rig.wait_for(is_parked)
    left, [letter] = len(rig.refetches), rig.letters.reasons()
    rig.execute("insert into s.plain values (8, 1, 'short')")
    rig.read("s.plain", at_least=2)
    rig.deliver("s.plain")
    applied = [one.row["id"] for one in rig.target.rows["plain"].values()]
    statuses = [rig.fill("s.plain")]
    rig.execute("update s.plain set note = 'short' where id = 7")
    statuses.append(rig.fill("s.plain"))
    rig.deliver(backfill)
    stored = {
        one.row["id"]: one.row["note"] for one in rig.target.rows["plain"].values()
    }
    request_status = "select status from towpath.signal where id like 'repair-%%'"

    assert ((1, 0), [8]) == ((pending, left), applied)
    assert "larger than its topic allows" in str(letter)
    assert "incomplete" == rig.one(request_status)
    assert [("incomplete", 1), ("completed", 2)] == statuses
    assert {7: "short", 8: "short"} == stored
    assert 0 == len(rig.parked)
