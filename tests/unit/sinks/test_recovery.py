"""A query that cannot continue recovers; each case has a named outcome."""

import orjson
import pytest
import structlog

from support.dead_letters import RecordedRepairs
from towpath.schemas.clock import SystemClock
from towpath.settings import Kafka, Route
from towpath.settings import Sink as SinkSettings
from towpath.sinks.engine.checkpoint import (
    CheckpointUnreadableError,
    PartitionCounts,
    committed_offsets,
    drop_checkpoint,
    newest_readable,
)
from towpath.sinks.engine.query import QueryPlan
from towpath.sinks.engine.recovery import (
    CHECK_EVERY_S,
    RECOVERIES_FILE,
    Recovery,
    RecoveryFinding,
    RecoveryOutcome,
)
from towpath.sinks.errors import (
    BrokerUnavailableError,
    PartitionsAddedError,
    TopicRemadeError,
)
from towpath.sinks.state.files import TopicIds
from towpath.sinks.state.progress import Progress, progress_path, write_progress

ORDERS = "towpath.shop.orders"
LINES = "towpath.shop.lines"
EVENTS = "outbox.event.order"
FILL = f"{ORDERS}.backfill.cache"
SINK = SinkSettings.model_validate(
    {
        "name": "cache",
        "kind": "cache",
        "url": "redis://unused",
        "route": [
            {"topic": ORDERS, "name": "orders"},
            {"topic": LINES, "name": "lines"},
        ],
    }
)
METADATA = '{"id":"7e21"}'


class Cluster:
    """Topics by name: the first and the next offset of each partition."""

    def __init__(self, **topics):
        self.topics = topics
        self.ids = {name: f"{name}'s" for name in topics}
        self.calls = []
        self.appearing = ()
        self.disappearing = ""

    def topic_ids(self, names):
        """Return the ids of existing topics; then one may appear or vanish."""
        self.calls.append("ids")
        appearing, self.appearing = self.appearing, ()
        values = {n: self.ids[n] for n in names if n in self.ids and n not in appearing}
        self.ids.update([appearing] if appearing else [])
        if self.disappearing:
            del self.topics[self.disappearing], self.ids[self.disappearing]
            self.disappearing = ""
        return values

    def names(self):
        """List the topics."""
        self.calls.append("names")
        return sorted(self.topics)

    def first_offsets(self, names):
        """Return the first retained offsets."""
        return self._offsets(names, 0)

    def end_offsets(self, names):
        """Return the end offsets."""
        self.calls.append("ends")
        return self._offsets(names, 1)

    def _offsets(self, names, which):
        return {
            name: {str(p): both[which] for p, both in enumerate(self.topics[name])}
            for name in names
            if name in self.topics
        }


class ManualClock(SystemClock):
    """A clock that the test sets."""

    now_s = 0.0

    def monotonic_s(self):
        """Return the set time."""
        return self.now_s


class RecoveryBench:
    """A sink's folder, its topics, and its refetch requests."""

    def __init__(self, folder):
        self.plan = QueryPlan(SINK, Kafka(bootstrap_servers="unused:9092"), folder)
        self.folder = folder / "sinks" / "cache"
        self.cluster = Cluster()
        self.repairs = RecordedRepairs()

    def set_topics(self, **topics):
        """Set the topics, by their short names."""
        names = {"orders": ORDERS, "lines": LINES, "fill": FILL}
        self.cluster = Cluster(**{names[n]: both for n, both in topics.items()})

    def set_checkpoint(self, offsets, *, batches=(0, 1), planned_offsets=True):
        """Write a checkpoint whose last committed batch ended at the offsets."""
        checkpoint = self.plan.checkpoint
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True, exist_ok=True)
        (checkpoint / "metadata").write_text(METADATA)
        text = f"v1\n{{}}\n{orjson.dumps(offsets).decode()}"
        for batch in batches:
            (checkpoint / "offsets" / str(batch)).write_text(text)
            (checkpoint / "commits" / str(batch)).write_text('v1\n{"next":0}')
        if planned_offsets:
            later = {t: {p: o + 5 for p, o in ps.items()} for t, ps in offsets.items()}
            last = checkpoint / "offsets" / str(len(batches))
            last.write_text(f"v1\n{{}}\n{orjson.dumps(later).decode()}")

    def set_progress(self, applied):
        """Write the sink's progress."""
        progress = Progress(sink="cache", applied=applied, batches=4)
        path = progress_path(self.plan.state_folder, "cache")
        write_progress(path, progress)

    def declare(self, offsets):
        """Store the offsets at which the sink begins."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.plan.starting_offsets_file.write_bytes(orjson.dumps(offsets))

    def recovery(self, clock=None):
        """Make a recovery of the sink."""
        return Recovery(self.plan, self.cluster, self.repairs, clock or SystemClock())

    def recover(self):
        """Run the recovery; return its findings."""
        return [(f.outcome, f.topic) for f in self.recovery().run()]

    @property
    def begins(self):
        """Return the offsets at which the query begins without a checkpoint."""
        return orjson.loads(self.plan.begins_file.read_bytes())

    @property
    def routes(self):
        """Return the routes whose rows were requested."""
        return [route for route, _ in self.repairs.routes]


@pytest.fixture
def bench(tmp_path):
    """Return a sink that has read some records of each partition."""
    made = RecoveryBench(tmp_path)
    made.set_topics(orders=[(0, 40), (0, 40)], lines=[(0, 40)])
    made.set_checkpoint({ORDERS: {"0": 10, "1": 12}, LINES: {"0": 7}})
    made.set_progress({ORDERS: {"0": 10, "1": 12}, LINES: {"0": 7}})
    return made


def test_a_query_that_can_continue_is_unchanged(bench):
    """
    The engine itself handles additional partitions and topics.
    """
    bench.set_topics(orders=[(0, 40), (0, 40), (0, 3)], lines=[(0, 40)], fill=[(0, 9)])

    assert ([], [], True) == (
        bench.recover(),
        bench.routes,
        bench.plan.checkpoint.exists(),
    )


def test_records_deleted_by_retention_cause_a_refetch(bench):
    """
    The rest continues; the planned batch was not written, so it is read again.
    """
    bench.set_topics(orders=[(20, 40), (0, 40)], lines=[(0, 40)])
    found = bench.recover()

    assert (
        [(RecoveryOutcome.RETENTION_PASSED, ORDERS)],
        ["orders"],
        {ORDERS: {"0": 20, "1": 12}, LINES: {"0": 7}},
        False,
    ) == (found, bench.routes, bench.begins, bench.plan.checkpoint.exists())


@pytest.mark.parametrize(
    ("topics", "outcome", "begins"),
    [
        ([(0, 3), (0, 40)], RecoveryOutcome.TOPIC_RECREATED, {"0": 0, "1": 12}),
        ([(0, 40)], RecoveryOutcome.PARTITIONS_GONE, {"0": 10}),
    ],
)
def test_a_recreated_topic_is_read_from_its_start(bench, topics, outcome, begins):
    """
    It now ends below the read offset, or has fewer partitions.
    """
    bench.set_topics(orders=topics, lines=[(0, 40)])

    assert ([(outcome, ORDERS)], ["orders"], {ORDERS: begins, LINES: {"0": 7}}) == (
        bench.recover(),
        bench.routes,
        bench.begins,
    )


def test_a_recreated_topic_that_has_grown_is_recognized_by_its_id(bench):
    """
    Its offsets do not reveal this; it is read from its start, but only once.
    """
    before = bench.recover()
    bench.cluster.ids[ORDERS] = "another"
    found = bench.recover()

    assert (
        ([], [(RecoveryOutcome.TOPIC_RECREATED, ORDERS)]),
        ["orders"],
        {ORDERS: {"0": 0, "1": 0}, LINES: {"0": 7}},
        [],
    ) == ((before, found), bench.routes, bench.begins, bench.recover())


def test_a_recreated_topic_is_recognized_without_a_checkpoint(bench):
    """
    The recreated topic is read from its start, and the other from its declared offset.
    """
    bench.recover()
    drop_checkpoint(bench.plan.checkpoint)
    bench.declare({ORDERS: {"0": 4, "1": 4}, LINES: {"0": 4}})
    bench.cluster.ids[ORDERS] = "another"
    found = bench.recover()

    assert (
        [
            (RecoveryOutcome.TOPIC_RECREATED, ORDERS),
            (RecoveryOutcome.CHECKPOINT_LOST, ""),
        ],
        ["orders"],
        {ORDERS: {"0": 0, "1": 0}, LINES: {"0": 4}},
    ) == (found, bench.routes, bench.begins)


def test_a_declared_start_does_not_apply_to_a_recreated_topic(bench):
    """
    The topic was recreated, and read up to an offset below that start.

    Then the checkpoint was lost.
    """
    bench.set_progress({ORDERS: {"0": 5, "1": 36}, LINES: {"0": 7}})
    bench.declare({ORDERS: {"0": 30, "1": 30}, LINES: {"0": 4}})
    drop_checkpoint(bench.plan.checkpoint)

    assert (
        [(RecoveryOutcome.CHECKPOINT_LOST, "")],
        {ORDERS: {"1": 30}, LINES: {"0": 4}},
    ) == (
        bench.recover(),
        bench.begins,
    )


def test_rows_missing_after_a_lost_checkpoint_are_refetched_once(bench):
    """
    The request is not repeated before the first batch is written.
    """
    bench.declare({ORDERS: {"0": 4, "1": 4}, LINES: {"0": 4}})
    bench.set_topics(orders=[(0, 40), (20, 40)])
    drop_checkpoint(bench.plan.checkpoint)
    first = bench.recover()

    assert (
        [
            (RecoveryOutcome.RETENTION_PASSED, ORDERS),
            (RecoveryOutcome.TOPIC_GONE, LINES),
            (RecoveryOutcome.CHECKPOINT_LOST, ""),
        ],
        {ORDERS: {"0": 4, "1": 20}},
        [],
        ["orders", "lines"],
    ) == (first, bench.begins, bench.recover(), bench.routes)


def test_a_recreated_unread_topic_is_refetched(bench):
    """
    The old topic may have had records that were never read.
    """
    bench.set_topics(orders=[(0, 40), (0, 40)], lines=[(0, 40)], fill=[(0, 9)])
    bench.recover()
    bench.cluster.ids[FILL] = "another"

    assert ([(RecoveryOutcome.TOPIC_RECREATED, FILL)], ["orders"], True) == (
        bench.recover(),
        bench.routes,
        bench.plan.checkpoint.exists(),
    )


def test_a_crash_before_the_ids_are_stored_repeats_the_findings(bench, monkeypatch):
    """
    The rows are requested twice, but the query begins at the start in both cases.
    """
    bench.recover()
    bench.cluster.ids[ORDERS] = "another"
    with monkeypatch.context() as patched:
        patched.setattr(TopicIds, "note", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bench.recover()

    assert ([(RecoveryOutcome.TOPIC_RECREATED, ORDERS)], ["orders", "orders"], []) == (
        bench.recover(),
        bench.routes,
        bench.recover(),
    )


def test_a_topic_recreated_during_the_check_is_found_by_the_next(bench):
    """
    It was absent when the ids were read, and present when the offsets were read.

    By then, it had as many records as before.
    """
    clock = ManualClock()
    bench.recover()
    bench.cluster.appearing = ORDERS, "another"
    recovery = bench.recovery(clock)
    found = recovery.run()
    clock.now_s += CHECK_EVERY_S
    with pytest.raises(TopicRemadeError, match=ORDERS):
        recovery.check()

    assert ((), [(RecoveryOutcome.TOPIC_RECREATED, ORDERS)], ["orders"], []) == (
        found,
        bench.recover(),
        bench.routes,
        bench.recover(),
    )


def test_a_deleted_unread_topic_is_refetched_once_it_is_recreated(bench):
    """
    It is not in the checkpoint, so it is not reported; its id is still known.
    """
    bench.set_topics(orders=[(0, 40), (0, 40)], lines=[(0, 40)], fill=[(0, 9)])
    bench.recover()
    gone = bench.cluster.topics.pop(FILL), bench.cluster.ids.pop(FILL)
    found = bench.recover()
    bench.cluster.topics[FILL], bench.cluster.ids[FILL] = gone[0], "another"

    assert ([], [(RecoveryOutcome.TOPIC_RECREATED, FILL)], ["orders"]) == (
        found,
        bench.recover(),
        bench.routes,
    )


@pytest.mark.parametrize("is_just_gone", [False, True])
def test_a_reported_deleted_topic_is_new_when_it_returns(bench, is_just_gone):
    """
    Its rows were requested when it vanished: its old id and partitions do not matter.
    """
    bench.recover()
    if is_just_gone:
        bench.cluster.disappearing = LINES
    else:
        del bench.cluster.topics[LINES], bench.cluster.ids[LINES]
    found = bench.recover()
    bench.set_checkpoint({ORDERS: {"0": 10, "1": 12}})
    bench.cluster.topics[LINES], bench.cluster.ids[LINES] = [(0, 4), (0, 3)], "another"

    assert ([(RecoveryOutcome.TOPIC_GONE, LINES)], [], ["lines"]) == (
        found,
        bench.recover(),
        bench.routes,
    )


def test_a_topic_without_a_route_is_forgotten(bench):
    """
    A route that reads it again counts as new, so its rows are requested then.
    """
    bench.set_topics(orders=[(0, 40), (0, 40)], lines=[(0, 40)])
    bench.cluster.topics["towpath.shop.other"] = [(0, 9)]
    bench.cluster.ids["towpath.shop.other"] = "other's"
    bench.set_checkpoint({ORDERS: {"0": 10, "1": 12}, "towpath.shop.other": {"0": 3}})
    bench.recover()

    assert {ORDERS, LINES} == orjson.loads(
        (bench.folder / "topic_ids.json").read_bytes()
    ).keys()


def test_a_broker_without_topic_ids_reports_no_recreation(bench):
    """
    A broker that gains topic ids later does not report one either.
    """
    ids, bench.cluster.ids = bench.cluster.ids, {}
    found = [bench.recover()]
    bench.cluster.ids = ids
    found.append(bench.recover())

    assert [[], []] == found


def test_a_running_query_is_ended_by_a_recreated_topic(bench):
    """
    The check runs at intervals; it stores new topics, and they do not end the query.
    """
    clock = ManualClock()
    recovery = bench.recovery(clock)
    recovery.run()
    bench.cluster.topics[FILL], bench.cluster.ids[FILL] = [(0, 9)], "one"
    clock.now_s += CHECK_EVERY_S
    recovery.check()
    bench.cluster.ids[FILL] = "another"
    recovery.check()
    clock.now_s += CHECK_EVERY_S

    with pytest.raises(TopicRemadeError, match=FILL):
        recovery.check()
    assert [(RecoveryOutcome.TOPIC_RECREATED, FILL)] == bench.recover()


def test_added_partitions_are_reported_once_keys_have_moved(bench):
    """
    The query continues by itself, and rows are refetched.

    A partial change may have been read before an earlier change to its key, which is
    still unread in another partition.
    """
    bench.recover()
    bench.set_topics(orders=[(0, 40), (0, 40), (0, 0)], lines=[(0, 40)])
    empty = bench.recover()
    bench.set_topics(orders=[(0, 40), (0, 40), (0, 3)], lines=[(0, 40)])
    used = bench.recover()

    assert ([], [(RecoveryOutcome.PARTITIONS_ADDED, ORDERS)], [], ["orders"], True) == (
        empty,
        used,
        bench.recover(),
        bench.routes,
        bench.plan.checkpoint.exists(),
    )


def test_added_partitions_that_have_only_whole_rows_are_only_reported(bench):
    """
    READ rows are correct in any order.
    """
    bench.set_topics(orders=[(0, 40), (0, 40)], lines=[(0, 40)], fill=[(0, 9)])
    bench.recover()
    bench.set_topics(orders=[(0, 40), (0, 40)], lines=[(0, 40)], fill=[(0, 9), (0, 9)])

    assert ([(RecoveryOutcome.PARTITIONS_ADDED, FILL)], []) == (
        bench.recover(),
        bench.routes,
    )


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"kind": "table"}, True),
        ({"kind": "aggregate", "state_types": ["Order"]}, False),
        ({"kind": "event_log"}, False),
    ],
)
def test_added_partitions_matter_where_changes_may_be_partial(block, expected):
    """
    An event is whole, and so is the state of an aggregate.
    """
    route = Route.model_validate({"topic": EVENTS, "name": "it", **block})

    assert expected == RecoveryFinding(
        RecoveryOutcome.PARTITIONS_ADDED, EVENTS
    ).may_lack(route)


def test_added_partitions_are_found_again_after_a_crash(bench, monkeypatch):
    """
    Rows are requested before the count is stored; a lost checkpoint hides no addition.
    """
    bench.recover()
    bench.set_topics(orders=[(0, 40), (0, 40), (0, 3)], lines=[(0, 40)])
    drop_checkpoint(bench.plan.checkpoint)
    with monkeypatch.context() as patched:
        patched.setattr(PartitionCounts, "note", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bench.recover()

    found = (RecoveryOutcome.PARTITIONS_ADDED, ORDERS)

    assert (True, ["orders", "orders"], False) == (
        found in bench.recover(),
        bench.routes,
        found in bench.recover(),
    )


def test_a_running_query_is_ended_by_added_partitions(bench):
    """
    It restarts immediately, and continues at its offsets.
    """
    clock = ManualClock()
    recovery = bench.recovery(clock)
    recovery.run()
    recovery.check()
    bench.cluster.topics[ORDERS] = [(0, 40), (0, 40), (0, 3)]
    recovery.check()
    clock.now_s += CHECK_EVERY_S

    with pytest.raises(PartitionsAddedError, match=ORDERS):
        recovery.check()
    assert [(RecoveryOutcome.PARTITIONS_ADDED, ORDERS)] == bench.recover()


def test_a_topic_missing_for_a_while_is_recognized_by_its_old_id(bench):
    """
    It is missing at one check, and recreated at the next.
    """
    clock = ManualClock()
    recovery = bench.recovery(clock)
    recovery.run()
    gone = bench.cluster.topics.pop(LINES), bench.cluster.ids.pop(LINES)
    clock.now_s += CHECK_EVERY_S
    recovery.check()
    bench.cluster.topics[LINES], bench.cluster.ids[LINES] = gone[0], "another"
    clock.now_s += CHECK_EVERY_S

    with pytest.raises(TopicRemadeError, match=LINES):
        recovery.check()


def test_added_partitions_of_a_running_querys_topic_are_found(bench):
    """
    A check stores the count; records in an additional partition end the query.
    """
    clock = ManualClock()
    recovery = bench.recovery(clock)
    recovery.run()
    bench.cluster.topics[FILL] = [(0, 9)]
    clock.now_s += CHECK_EVERY_S
    recovery.check()
    bench.cluster.topics[FILL] = [(0, 9), (0, 1)]
    clock.now_s += CHECK_EVERY_S

    with pytest.raises(PartitionsAddedError, match=FILL):
        recovery.check()


def test_a_gap_that_cannot_be_filled_is_logged_with_its_command(bench):
    """
    The query continues without the rows, so the operator must fill the route.
    """
    bench.set_topics(orders=[(7, 9)], lines=[(0, 9)])
    bench.set_checkpoint({ORDERS: {"0": 3}, LINES: {"0": 3}})
    bench.repairs = RecordedRepairs(accepts=False)
    with structlog.testing.capture_logs() as logs:
        bench.recover()

    assert [("cache", "Fill it: towpath sink refill cache --route orders")] == [
        (log["sink"], log["remedy"]) for log in logs if log["log_level"] == "error"
    ]


def test_a_running_query_lists_its_topics_once_per_check(bench):
    """
    All comparisons share one listing, which is not repeated before it is due.
    """
    clock = ManualClock()
    recovery = bench.recovery(clock)
    recovery.run()
    bench.cluster.calls.clear()
    recovery.check()
    clock.now_s += CHECK_EVERY_S
    recovery.check()
    recovery.check()

    assert ["names", "ids", "ends"] == bench.cluster.calls


def test_a_recreated_topic_with_more_partitions_has_added_none(bench):
    """
    Its earlier partition count does not matter, and its rows are requested once.
    """
    bench.recover()
    bench.cluster.ids[ORDERS] = "another"
    bench.cluster.topics[ORDERS] = [(0, 3), (0, 2), (0, 0)]
    found = bench.recover()
    bench.cluster.topics[ORDERS] = [(0, 3), (0, 2), (0, 9)]

    assert ([(RecoveryOutcome.TOPIC_RECREATED, ORDERS)], [], ["orders"]) == (
        found,
        bench.recover(),
        bench.routes,
    )


def test_a_deleted_topic_is_dropped_and_its_rows_are_refetched(bench):
    """
    The other topics continue.
    """
    bench.set_topics(orders=[(0, 40), (0, 40)])

    assert (
        [(RecoveryOutcome.TOPIC_GONE, LINES)],
        ["lines"],
        {ORDERS: {"0": 10, "1": 12}},
    ) == (bench.recover(), bench.routes, bench.begins)


@pytest.mark.parametrize("gone", ["towpath.shop.other", FILL])
def test_a_topic_that_no_route_reads_is_dropped(bench, gone):
    """
    A changed route may have read it, or it is the sink's deleted backfill topic.
    """
    bench.set_checkpoint({ORDERS: {"0": 10, "1": 12}, gone: {"0": 3}})

    assert ([(RecoveryOutcome.ROUTE_GONE, gone)], [], {ORDERS: {"0": 10, "1": 12}}) == (
        bench.recover(),
        bench.routes,
        bench.begins,
    )


def test_a_new_route_whose_topic_lost_its_beginning_is_refetched(bench):
    """
    With its checkpoint, the engine would begin that topic at 0, again and again.
    """
    bench.set_checkpoint({ORDERS: {"0": 10, "1": 12}})
    bench.set_topics(orders=[(0, 40), (0, 40)], lines=[(9, 40)])

    assert ([(RecoveryOutcome.RETENTION_PASSED, LINES)], ["lines"], False) == (
        bench.recover(),
        bench.routes,
        bench.plan.checkpoint.exists(),
    )
    assert bench.recover() == []
    resumes = orjson.loads(bench.plan.resumes_file.read_bytes())
    assert {ORDERS: {"0": 10, "1": 12}, LINES: {"0": 9}} == resumes


def test_a_batch_whose_records_are_deleted_is_planned_again(bench):
    """
    All records read so far exist, but the engine would request deleted ones forever.
    """
    bench.set_checkpoint({ORDERS: {"0": 10, "1": 12}})
    bench.set_topics(orders=[(0, 14), (0, 40)])

    assert ([(RecoveryOutcome.TOPIC_RECREATED, ORDERS)], ["orders"], False) == (
        bench.recover(),
        bench.routes,
        bench.plan.checkpoint.exists(),
    )
    resumes = orjson.loads(bench.plan.resumes_file.read_bytes())
    assert {ORDERS: {"0": 10, "1": 12}} == resumes


@pytest.mark.parametrize(("first", "routes"), [(0, []), (10, []), (11, ["orders"])])
def test_a_lost_checkpoint_is_reported_and_its_gap_refetched(bench, first, routes):
    """
    Guards absorb repeated records; rows of deleted unread records are requested.
    """
    drop_checkpoint(bench.plan.checkpoint)
    bench.set_topics(orders=[(first, 40), (0, 40)], lines=[(0, 40)])
    found = bench.recover()

    assert (True, routes, False) == (
        (RecoveryOutcome.CHECKPOINT_LOST, "") in found,
        bench.routes,
        bench.plan.starting_offsets_file.exists(),
    )


@pytest.mark.parametrize(("first", "routes"), [(0, []), (5, ["orders"])])
def test_a_sink_without_state_refetches_rows_deleted_by_retention(
    tmp_path, first, routes
):
    """
    A new sink looks like one that lost all its state: both lack the rows.
    """
    bench = RecoveryBench(tmp_path)
    bench.set_topics(orders=[(first, 40)])
    bench.recover()

    assert routes == bench.routes


def test_a_sink_that_was_declared_late_refetches_nothing(tmp_path):
    """
    A snapshot fills it, so records deleted below its start do not matter.
    """
    bench = RecoveryBench(tmp_path)
    bench.set_topics(orders=[(5, 40)])
    bench.declare({ORDERS: {"0": 30}})

    assert ([], [], {ORDERS: {"0": 30}}) == (
        bench.recover(),
        bench.routes,
        bench.begins,
    )


def test_a_declared_start_below_retention_is_left_out(tmp_path):
    """
    The engine would refuse it; the query begins at the first record instead.
    """
    bench = RecoveryBench(tmp_path)
    bench.set_topics(orders=[(35, 40), (0, 40)])
    bench.declare({ORDERS: {"0": 30, "1": 30}})

    assert (
        [(RecoveryOutcome.RETENTION_PASSED, ORDERS)],
        ["orders"],
        {ORDERS: {"0": 35, "1": 30}},
    ) == (bench.recover(), bench.routes, bench.begins)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("offsets/1", ""),
        ("offsets/1", "v1\n{}\n[1]"),
        ("offsets/2", 'v1\n{}\n{"cut'),
        ("commits/1", "\0\0\0"),
        ("metadata", ""),
        ("offsets/1", None),
    ],
)
def test_an_unreadable_checkpoint_is_replaced(bench, file, content):
    """
    The newest readable batch replaces it; the old checkpoint is kept for inspection.
    """
    path = bench.plan.checkpoint / file
    path.unlink() if content is None else path.write_text(content)
    found = bench.recover()

    assert (
        [(RecoveryOutcome.CHECKPOINT_UNREADABLE, "")],
        [],
        {ORDERS: {"0": 10, "1": 12}, LINES: {"0": 7}},
        True,
    ) == (
        found,
        bench.routes,
        bench.begins,
        (bench.folder / "checkpoint.dropped").is_dir(),
    )


def test_without_a_readable_batch_the_progress_decides(bench):
    """
    The progress is written after each batch, and covers only durable records.
    """
    for path in (bench.plan.checkpoint / "offsets").iterdir():
        path.write_text("")

    assert ([(RecoveryOutcome.CHECKPOINT_UNREADABLE, "")], {LINES: {"0": 7}}) == (
        bench.recover(),
        {LINES: bench.begins[LINES]},
    )


def test_a_checkpoint_without_a_committed_batch_is_dropped(bench):
    """
    There is no batch to continue from, so the query begins again.
    """
    for path in (bench.plan.checkpoint / "commits").iterdir():
        path.unlink()

    assert ([], False) == (bench.recover(), bench.plan.checkpoint.exists())


def test_a_failed_refetch_request_is_repeated_by_the_next_recovery(bench):
    """
    The checkpoint is kept until the request succeeds, which is then not repeated.
    """
    bench.set_topics(orders=[(20, 40), (0, 40)], lines=[(0, 40)])

    def fail(_route, _why):
        message = "no broker"
        raise BrokerUnavailableError(message)

    request_all, bench.repairs.request_all = bench.repairs.request_all, fail
    with pytest.raises(BrokerUnavailableError):
        bench.recover()
    bench.repairs.request_all = request_all
    bench.recover()
    again = bench.recover()

    assert (["orders"], []) == (bench.routes, again)


def test_a_recovered_start_is_not_a_late_declaration(bench):
    """
    The sink has the earlier rows, so nothing waits for a fill.

    A sink that was declared late begins at its declared offsets if its checkpoint is
    lost.
    """
    bench.set_topics(orders=[(20, 40), (0, 40)], lines=[(0, 40)])
    bench.recover()
    before = bench.plan.starting_offsets_file.exists()
    bench.declare({ORDERS: {"0": 4}})
    resumed = bench.begins
    bench.set_checkpoint({ORDERS: {"0": 25, "1": 12}, LINES: {"0": 7}})
    bench.recover()

    assert (
        False,
        {ORDERS: {"0": 20, "1": 12}, LINES: {"0": 7}},
        {ORDERS: {"0": 4}},
    ) == (
        before,
        resumed,
        bench.begins,
    )


def test_a_recovery_without_topics_is_not_a_loss(bench):
    """
    The query begins with the next records, and nothing is reported a second time.
    """
    bench.set_checkpoint({LINES: {"0": 7}})
    bench.set_topics(orders=[(0, 40), (0, 40)])
    bench.recover()

    assert ({}, []) == (bench.begins, bench.recover())


def test_findings_of_a_recovery_are_stored(bench):
    """
    Each finding is a line in a file of the sink.
    """
    bench.set_topics(orders=[(0, 40), (0, 40)])
    bench.recover()
    lines = (bench.folder / RECOVERIES_FILE).read_bytes().splitlines()
    documents = [orjson.loads(line) for line in lines]

    assert [("topic_gone", LINES)] == [
        (line["outcome"], line["topic"]) for line in documents
    ]


def test_the_committed_batch_is_the_querys_position(bench):
    """
    The planned batch does not count; without a checkpoint there is no position.
    """
    checkpoint = bench.plan.checkpoint
    before = committed_offsets(checkpoint), newest_readable(checkpoint)
    (checkpoint / "commits" / "1").write_text("")
    with pytest.raises(CheckpointUnreadableError):
        committed_offsets(checkpoint)
    drop_checkpoint(checkpoint)

    expected = {ORDERS: {"0": 10, "1": 12}, LINES: {"0": 7}}

    assert ((expected, expected), None) == (before, committed_offsets(checkpoint))
