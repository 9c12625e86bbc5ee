"""How a query recovers that cannot continue: each case has a name."""

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
    LOOK_EVERY_S,
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
        self.asked = []
        self.rises = ()
        self.falls = ""

    def topic_ids(self, names):
        """Return the ids of existing topics; one may appear, or go, right after it."""
        self.asked.append("ids")
        rises, self.rises = self.rises, ()
        values = {n: self.ids[n] for n in names if n in self.ids and n not in rises}
        self.ids.update([rises] if rises else [])
        if self.falls:
            del self.topics[self.falls], self.ids[self.falls]
            self.falls = ""
        return values

    def names(self):
        """List them."""
        self.asked.append("names")
        return sorted(self.topics)

    def first_offsets(self, names):
        """Return the first retained offsets."""
        return self._offsets(names, 0)

    def end_offsets(self, names):
        """Return the end offsets."""
        self.asked.append("ends")
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

    def has(self, **topics):
        """Set the topics, by their short names."""
        names = {"orders": ORDERS, "lines": LINES, "fill": FILL}
        self.cluster = Cluster(**{names[n]: both for n, both in topics.items()})

    def stood(self, offsets, *, batches=(0, 1), planned_offsets=True):
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

    def ran(self, applied):
        """Write a progress."""
        progress = Progress(sink="cache", applied=applied, batches=4)
        path = progress_path(self.plan.state_folder, "cache")
        write_progress(path, progress)

    def declared(self, offsets):
        """Store the offsets where the sink is to begin."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.plan.starting_offsets_file.write_bytes(orjson.dumps(offsets))

    def recovery(self, clock=None):
        """Make the recovery of all of it."""
        return Recovery(self.plan, self.cluster, self.repairs, clock or SystemClock())

    def recover(self):
        """Run the recovery; return its findings."""
        return [(f.outcome, f.topic) for f in self.recovery().run()]

    @property
    def begins(self):
        """Return where the query begins without a checkpoint."""
        return orjson.loads(self.plan.begins_file.read_bytes())

    @property
    def routes(self):
        """Return the routes whose rows were requested."""
        return [route for route, _ in self.repairs.routes]


@pytest.fixture
def place(tmp_path):
    """Return a sink that has read order 10 of each partition."""
    made = RecoveryBench(tmp_path)
    made.has(orders=[(0, 40), (0, 40)], lines=[(0, 40)])
    made.stood({ORDERS: {"0": 10, "1": 12}, LINES: {"0": 7}})
    made.ran({ORDERS: {"0": 10, "1": 12}, LINES: {"0": 7}})
    return made


def test_a_query_that_can_continue_is_unchanged(place):
    """
    The engine itself handles further partitions and topics.
    """
    place.has(orders=[(0, 40), (0, 40), (0, 3)], lines=[(0, 40)], fill=[(0, 9)])

    assert ([], [], True) == (
        place.recover(),
        place.routes,
        place.plan.checkpoint.exists(),
    )


def test_records_deleted_by_retention_are_refetched(place):
    """
    The rest continues; the planned batch was not written, and comes.
    """
    place.has(orders=[(20, 40), (0, 40)], lines=[(0, 40)])
    found = place.recover()

    assert (
        [(RecoveryOutcome.RETENTION_PASSED, ORDERS)],
        ["orders"],
        {ORDERS: {"0": 20, "1": 12}, LINES: {"0": 7}},
        False,
    ) == (found, place.routes, place.begins, place.plan.checkpoint.exists())


@pytest.mark.parametrize(
    ("topics", "outcome", "begins"),
    [
        ([(0, 3), (0, 40)], RecoveryOutcome.TOPIC_RECREATED, {"0": 0, "1": 12}),
        ([(0, 40)], RecoveryOutcome.PARTITIONS_GONE, {"0": 10}),
    ],
)
def test_a_recreated_topic_is_read_from_its_start(place, topics, outcome, begins):
    """
    It ends below the read offset, or has fewer partitions.
    """
    place.has(orders=topics, lines=[(0, 40)])

    assert ([(outcome, ORDERS)], ["orders"], {ORDERS: begins, LINES: {"0": 7}}) == (
        place.recover(),
        place.routes,
        place.begins,
    )


def test_a_recreated_topic_that_has_grown_is_recognized_by_its_id(place):
    """
    Its offsets show nothing; it is read from its start, once.
    """
    before = place.recover()
    place.cluster.ids[ORDERS] = "another"
    found = place.recover()

    assert (
        ([], [(RecoveryOutcome.TOPIC_RECREATED, ORDERS)]),
        ["orders"],
        {ORDERS: {"0": 0, "1": 0}, LINES: {"0": 7}},
        [],
    ) == ((before, found), place.routes, place.begins, place.recover())


def test_a_recreated_topic_is_recognized_without_a_checkpoint(place):
    """
    The rest is read again; its first records are unknown.
    """
    place.recover()
    drop_checkpoint(place.plan.checkpoint)
    place.declared({ORDERS: {"0": 4, "1": 4}, LINES: {"0": 4}})
    place.cluster.ids[ORDERS] = "another"
    found = place.recover()

    assert (
        [
            (RecoveryOutcome.TOPIC_RECREATED, ORDERS),
            (RecoveryOutcome.CHECKPOINT_LOST, ""),
        ],
        ["orders"],
        {ORDERS: {"0": 0, "1": 0}, LINES: {"0": 4}},
    ) == (found, place.routes, place.begins)


def test_a_declared_start_does_not_apply_to_a_recreated_topic(place):
    """
    It was recreated, recovered and read to below that; then the checkpoint was lost.
    """
    place.ran({ORDERS: {"0": 5, "1": 36}, LINES: {"0": 7}})
    place.declared({ORDERS: {"0": 30, "1": 30}, LINES: {"0": 4}})
    drop_checkpoint(place.plan.checkpoint)

    assert (
        [(RecoveryOutcome.CHECKPOINT_LOST, "")],
        {ORDERS: {"1": 30}, LINES: {"0": 4}},
    ) == (
        place.recover(),
        place.begins,
    )


def test_missing_rows_of_a_lost_checkpoint_are_refetched_once(place):
    """
    The request is not repeated before the first batch is written.
    """
    place.declared({ORDERS: {"0": 4, "1": 4}, LINES: {"0": 4}})
    place.has(orders=[(0, 40), (20, 40)])
    drop_checkpoint(place.plan.checkpoint)
    first = place.recover()

    assert (
        [
            (RecoveryOutcome.RETENTION_PASSED, ORDERS),
            (RecoveryOutcome.TOPIC_GONE, LINES),
            (RecoveryOutcome.CHECKPOINT_LOST, ""),
        ],
        {ORDERS: {"0": 4, "1": 20}},
        [],
        ["orders", "lines"],
    ) == (first, place.begins, place.recover(), place.routes)


def test_a_recreated_unread_topic_is_refetched(place):
    """
    The old one may have had records that were never read.
    """
    place.has(orders=[(0, 40), (0, 40)], lines=[(0, 40)], fill=[(0, 9)])
    place.recover()
    place.cluster.ids[FILL] = "another"

    assert ([(RecoveryOutcome.TOPIC_RECREATED, FILL)], ["orders"], True) == (
        place.recover(),
        place.routes,
        place.plan.checkpoint.exists(),
    )


def test_a_crash_before_the_ids_are_stored_repeats_the_findings(place, monkeypatch):
    """
    It requests twice, which reads twice, and begins at the start all the same.
    """
    place.recover()
    place.cluster.ids[ORDERS] = "another"
    with monkeypatch.context() as patched:
        patched.setattr(TopicIds, "note", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            place.recover()

    assert ([(RecoveryOutcome.TOPIC_RECREATED, ORDERS)], ["orders", "orders"], []) == (
        place.recover(),
        place.routes,
        place.recover(),
    )


def test_a_topic_recreated_during_the_check_is_found_by_the_next(place):
    """
    It had no id when ids were requested, and as many records when offsets were.
    """
    clock = ManualClock()
    place.recover()
    place.cluster.rises = ORDERS, "another"
    recovery = place.recovery(clock)
    found = recovery.run()
    clock.now_s += LOOK_EVERY_S
    with pytest.raises(TopicRemadeError, match=ORDERS):
        recovery.check()

    assert ((), [(RecoveryOutcome.TOPIC_RECREATED, ORDERS)], ["orders"], []) == (
        found,
        place.recover(),
        place.routes,
        place.recover(),
    )


def test_a_deleted_unread_topic_is_refetched_once_it_is_recreated(place):
    """
    It is not in the checkpoint, so it is not reported; its id is still known.
    """
    place.has(orders=[(0, 40), (0, 40)], lines=[(0, 40)], fill=[(0, 9)])
    place.recover()
    gone = place.cluster.topics.pop(FILL), place.cluster.ids.pop(FILL)
    found = place.recover()
    place.cluster.topics[FILL], place.cluster.ids[FILL] = gone[0], "another"

    assert ([], [(RecoveryOutcome.TOPIC_RECREATED, FILL)], ["orders"]) == (
        found,
        place.recover(),
        place.routes,
    )


@pytest.mark.parametrize("is_just_gone", [False, True])
def test_a_reported_deleted_topic_is_new_when_it_returns(place, is_just_gone):
    """
    Its rows were requested when it went: neither its id nor its partitions count.
    """
    place.recover()
    if is_just_gone:
        place.cluster.falls = LINES
    else:
        del place.cluster.topics[LINES], place.cluster.ids[LINES]
    found = place.recover()
    place.stood({ORDERS: {"0": 10, "1": 12}})
    place.cluster.topics[LINES], place.cluster.ids[LINES] = [(0, 4), (0, 3)], "another"

    assert ([(RecoveryOutcome.TOPIC_GONE, LINES)], [], ["lines"]) == (
        found,
        place.recover(),
        place.routes,
    )


def test_a_topic_without_a_route_is_forgotten(place):
    """
    A route that reads it again has its rows requested as a new route.
    """
    place.has(orders=[(0, 40), (0, 40)], lines=[(0, 40)])
    place.cluster.topics["towpath.shop.other"] = [(0, 9)]
    place.cluster.ids["towpath.shop.other"] = "other's"
    place.stood({ORDERS: {"0": 10, "1": 12}, "towpath.shop.other": {"0": 3}})
    place.recover()

    assert {ORDERS, LINES} == orjson.loads(
        (place.folder / "topic_ids.json").read_bytes()
    ).keys()


def test_a_broker_without_topic_ids_reports_no_recreation(place):
    """
    Neither does one that begins to have them.
    """
    ids, place.cluster.ids = place.cluster.ids, {}
    found = [place.recover()]
    place.cluster.ids = ids
    found.append(place.recover())

    assert [[], []] == found


def test_a_running_query_is_ended_by_a_recreated_topic(place):
    """
    The check runs at intervals; new topics are stored, unchanged ones continue.
    """
    clock = ManualClock()
    recovery = place.recovery(clock)
    recovery.run()
    place.cluster.topics[FILL], place.cluster.ids[FILL] = [(0, 9)], "one"
    clock.now_s += LOOK_EVERY_S
    recovery.check()
    place.cluster.ids[FILL] = "another"
    recovery.check()
    clock.now_s += LOOK_EVERY_S

    with pytest.raises(TopicRemadeError, match=FILL):
        recovery.check()
    assert [(RecoveryOutcome.TOPIC_RECREATED, FILL)] == place.recover()


def test_added_partitions_are_reported_once_keys_have_moved(place):
    """
    The query continues by itself, and rows are refetched.

    A change that leaves columns out may have been read before an earlier one of its
    key, which still waits in another partition.
    """
    place.recover()
    place.has(orders=[(0, 40), (0, 40), (0, 0)], lines=[(0, 40)])
    empty = place.recover()
    place.has(orders=[(0, 40), (0, 40), (0, 3)], lines=[(0, 40)])
    used = place.recover()

    assert ([], [(RecoveryOutcome.PARTITIONS_ADDED, ORDERS)], [], ["orders"], True) == (
        empty,
        used,
        place.recover(),
        place.routes,
        place.plan.checkpoint.exists(),
    )


def test_added_partitions_with_whole_rows_only_are_reported_only(place):
    """
    READ rows are right in any order.
    """
    place.has(orders=[(0, 40), (0, 40)], lines=[(0, 40)], fill=[(0, 9)])
    place.recover()
    place.has(orders=[(0, 40), (0, 40)], lines=[(0, 40)], fill=[(0, 9), (0, 9)])

    assert ([(RecoveryOutcome.PARTITIONS_ADDED, FILL)], []) == (
        place.recover(),
        place.routes,
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


def test_added_partitions_are_found_again_after_a_crash(place, monkeypatch):
    """
    Rows are requested before the count is stored; a lost checkpoint hides nothing.
    """
    place.recover()
    place.has(orders=[(0, 40), (0, 40), (0, 3)], lines=[(0, 40)])
    drop_checkpoint(place.plan.checkpoint)
    with monkeypatch.context() as patched:
        patched.setattr(PartitionCounts, "note", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            place.recover()

    found = (RecoveryOutcome.PARTITIONS_ADDED, ORDERS)

    assert (True, ["orders", "orders"], False) == (
        found in place.recover(),
        place.routes,
        found in place.recover(),
    )


def test_a_running_query_is_ended_by_added_partitions(place):
    """
    It restarts at once, and continues at its offsets.
    """
    clock = ManualClock()
    recovery = place.recovery(clock)
    recovery.run()
    recovery.check()
    place.cluster.topics[ORDERS] = [(0, 40), (0, 40), (0, 3)]
    recovery.check()
    clock.now_s += LOOK_EVERY_S

    with pytest.raises(PartitionsAddedError, match=ORDERS):
        recovery.check()
    assert [(RecoveryOutcome.PARTITIONS_ADDED, ORDERS)] == place.recover()


def test_a_topic_missing_for_a_while_is_known_by_its_old_id(place):
    """
    It is deleted at one check, and recreated at the next.
    """
    clock = ManualClock()
    recovery = place.recovery(clock)
    recovery.run()
    gone = place.cluster.topics.pop(LINES), place.cluster.ids.pop(LINES)
    clock.now_s += LOOK_EVERY_S
    recovery.check()
    place.cluster.topics[LINES], place.cluster.ids[LINES] = gone[0], "another"
    clock.now_s += LOOK_EVERY_S

    with pytest.raises(TopicRemadeError, match=LINES):
        recovery.check()


def test_added_partitions_of_a_running_querys_topic_are_found(place):
    """
    A check stores the count; records in one more partition end the query.
    """
    clock = ManualClock()
    recovery = place.recovery(clock)
    recovery.run()
    place.cluster.topics[FILL] = [(0, 9)]
    clock.now_s += LOOK_EVERY_S
    recovery.check()
    place.cluster.topics[FILL] = [(0, 9), (0, 1)]
    clock.now_s += LOOK_EVERY_S

    with pytest.raises(PartitionsAddedError, match=FILL):
        recovery.check()


def test_a_gap_that_cannot_be_filled_is_logged_with_its_command(place):
    """
    The query continues without the rows, so the operator must fill the route.
    """
    place.has(orders=[(7, 9)], lines=[(0, 9)])
    place.stood({ORDERS: {"0": 3}, LINES: {"0": 3}})
    place.repairs = RecordedRepairs(can=False)
    with structlog.testing.capture_logs() as logs:
        place.recover()

    assert [("cache", "Fill it: towpath sink refill cache --route orders")] == [
        (log["sink"], log["remedy"]) for log in logs if log["log_level"] == "error"
    ]


def test_a_running_query_lists_its_topics_once_per_check(place):
    """
    The comparisons share one listing; it does not repeat before it is due.
    """
    clock = ManualClock()
    recovery = place.recovery(clock)
    recovery.run()
    place.cluster.asked.clear()
    recovery.check()
    clock.now_s += LOOK_EVERY_S
    recovery.check()
    recovery.check()

    assert ["names", "ids", "ends"] == place.cluster.asked


def test_a_recreated_topic_with_more_partitions_has_added_none(place):
    """
    Its former count does not matter: its rows are requested once.
    """
    place.recover()
    place.cluster.ids[ORDERS] = "another"
    place.cluster.topics[ORDERS] = [(0, 3), (0, 2), (0, 0)]
    found = place.recover()
    place.cluster.topics[ORDERS] = [(0, 3), (0, 2), (0, 9)]

    assert ([(RecoveryOutcome.TOPIC_RECREATED, ORDERS)], [], ["orders"]) == (
        found,
        place.recover(),
        place.routes,
    )


def test_a_deleted_topic_is_dropped_and_its_rows_are_refetched(place):
    """
    The other topics continue.
    """
    place.has(orders=[(0, 40), (0, 40)])

    assert (
        [(RecoveryOutcome.TOPIC_GONE, LINES)],
        ["lines"],
        {ORDERS: {"0": 10, "1": 12}},
    ) == (place.recover(), place.routes, place.begins)


@pytest.mark.parametrize("gone", ["towpath.shop.other", FILL])
def test_a_topic_that_no_route_reads_is_dropped(place, gone):
    """
    A topic of a changed route, or the sink's own backfill topic after its deletion.
    """
    place.stood({ORDERS: {"0": 10, "1": 12}, gone: {"0": 3}})

    assert ([(RecoveryOutcome.ROUTE_GONE, gone)], [], {ORDERS: {"0": 10, "1": 12}}) == (
        place.recover(),
        place.routes,
        place.begins,
    )


def test_a_new_route_whose_topic_lost_its_beginning_is_refetched(place):
    """
    From its checkpoint the engine would begin that topic at 0, again and again.
    """
    place.stood({ORDERS: {"0": 10, "1": 12}})
    place.has(orders=[(0, 40), (0, 40)], lines=[(9, 40)])

    assert ([(RecoveryOutcome.RETENTION_PASSED, LINES)], ["lines"], False) == (
        place.recover(),
        place.routes,
        place.plan.checkpoint.exists(),
    )
    assert place.recover() == []
    resumes = orjson.loads(place.plan.resumes_file.read_bytes())
    assert {ORDERS: {"0": 10, "1": 12}, LINES: {"0": 9}} == resumes


def test_a_batch_whose_records_are_deleted_is_planned_again(place):
    """
    All read records exist; the engine would request the rest for ever.
    """
    place.stood({ORDERS: {"0": 10, "1": 12}})
    place.has(orders=[(0, 14), (0, 40)])

    assert ([(RecoveryOutcome.TOPIC_RECREATED, ORDERS)], ["orders"], False) == (
        place.recover(),
        place.routes,
        place.plan.checkpoint.exists(),
    )
    resumes = orjson.loads(place.plan.resumes_file.read_bytes())
    assert {ORDERS: {"0": 10, "1": 12}} == resumes


@pytest.mark.parametrize(("first", "routes"), [(0, []), (10, []), (11, ["orders"])])
def test_a_lost_checkpoint_is_reported_and_its_gap_refetched(place, first, routes):
    """
    Guards absorb repeated records; unread deleted ones are requested.
    """
    drop_checkpoint(place.plan.checkpoint)
    place.has(orders=[(first, 40), (0, 40)], lines=[(0, 40)])
    found = place.recover()

    assert (True, routes, False) == (
        (RecoveryOutcome.CHECKPOINT_LOST, "") in found,
        place.routes,
        place.plan.starting_offsets_file.exists(),
    )


@pytest.mark.parametrize(("first", "routes"), [(0, []), (5, ["orders"])])
def test_a_sink_without_state_refetches_rows_deleted_by_retention(
    tmp_path, first, routes
):
    """
    A new sink looks like one that lost all its state: both lack the rows.
    """
    place = RecoveryBench(tmp_path)
    place.has(orders=[(first, 40)])
    place.recover()

    assert routes == place.routes


def test_a_late_declared_sink_refetches_nothing(tmp_path):
    """
    A snapshot fills it: records deleted below its start do not matter.
    """
    place = RecoveryBench(tmp_path)
    place.has(orders=[(5, 40)])
    place.declared({ORDERS: {"0": 30}})

    assert ([], [], {ORDERS: {"0": 30}}) == (
        place.recover(),
        place.routes,
        place.begins,
    )


def test_a_declared_start_below_retention_is_left_out(tmp_path):
    """
    The engine would refuse it; the query begins at the first record instead.
    """
    place = RecoveryBench(tmp_path)
    place.has(orders=[(35, 40), (0, 40)])
    place.declared({ORDERS: {"0": 30, "1": 30}})

    assert (
        [(RecoveryOutcome.RETENTION_PASSED, ORDERS)],
        ["orders"],
        {ORDERS: {"0": 35, "1": 30}},
    ) == (place.recover(), place.routes, place.begins)


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
def test_an_unreadable_checkpoint_is_replaced(place, file, content):
    """
    It is replaced by the newest readable batch, and kept beside for inspection.
    """
    path = place.plan.checkpoint / file
    path.unlink() if content is None else path.write_text(content)
    found = place.recover()

    assert (
        [(RecoveryOutcome.CHECKPOINT_UNREADABLE, "")],
        [],
        {ORDERS: {"0": 10, "1": 12}, LINES: {"0": 7}},
        True,
    ) == (
        found,
        place.routes,
        place.begins,
        (place.folder / "checkpoint.dropped").is_dir(),
    )


def test_without_a_readable_batch_the_progress_decides(place):
    """
    It is written after each batch, and covers only durable records.
    """
    for path in (place.plan.checkpoint / "offsets").iterdir():
        path.write_text("")

    assert ([(RecoveryOutcome.CHECKPOINT_UNREADABLE, "")], {LINES: {"0": 7}}) == (
        place.recover(),
        {LINES: place.begins[LINES]},
    )


def test_a_checkpoint_without_a_batch_begins_again(place):
    """
    Its query has no end offsets: it would find the same records again.
    """
    for path in (place.plan.checkpoint / "commits").iterdir():
        path.unlink()

    assert ([], False) == (place.recover(), place.plan.checkpoint.exists())


def test_a_crash_after_the_request_repeats_it(place):
    """
    Nothing is dropped before its request is stored, and then once is enough.
    """
    place.has(orders=[(20, 40), (0, 40)], lines=[(0, 40)])

    def away(_route, _why):
        message = "no broker"
        raise BrokerUnavailableError(message)

    request_all, place.repairs.request_all = place.repairs.request_all, away
    with pytest.raises(BrokerUnavailableError):
        place.recover()
    place.repairs.request_all = request_all
    place.recover()
    again = place.recover()

    assert (["orders"], []) == (place.routes, again)


def test_a_recovered_start_is_no_late_declaration(place):
    """
    The sink has the earlier rows, so no fill is waited for.

    A sink that was declared late begins where it was declared, if its checkpoint is
    lost.
    """
    place.has(orders=[(20, 40), (0, 40)], lines=[(0, 40)])
    place.recover()
    before = place.plan.starting_offsets_file.exists()
    place.declared({ORDERS: {"0": 4}})
    resumed = place.begins
    place.stood({ORDERS: {"0": 25, "1": 12}, LINES: {"0": 7}})
    place.recover()

    assert (
        False,
        {ORDERS: {"0": 20, "1": 12}, LINES: {"0": 7}},
        {ORDERS: {"0": 4}},
    ) == (
        before,
        resumed,
        place.begins,
    )


def test_a_recovery_without_topics_is_no_loss_either(place):
    """
    The query begins with the next records, and reports nothing a second time.
    """
    place.stood({LINES: {"0": 7}})
    place.has(orders=[(0, 40), (0, 40)])
    place.recover()

    assert ({}, []) == (place.begins, place.recover())


def test_findings_of_a_recovery_are_stored(place):
    """
    Each is a line in a file of the sink.
    """
    place.has(orders=[(0, 40), (0, 40)])
    place.recover()
    lines = (place.folder / RECOVERIES_FILE).read_bytes().splitlines()
    documents = [orjson.loads(line) for line in lines]

    assert [("topic_gone", LINES)] == [
        (line["outcome"], line["topic"]) for line in documents
    ]


def test_the_committed_batch_is_the_querys_position(place):
    """
    The planned one does not count; without a checkpoint there is no position.
    """
    checkpoint = place.plan.checkpoint
    before = committed_offsets(checkpoint), newest_readable(checkpoint)
    (checkpoint / "commits" / "1").write_text("")
    with pytest.raises(CheckpointUnreadableError):
        committed_offsets(checkpoint)
    drop_checkpoint(checkpoint)

    expected = {ORDERS: {"0": 10, "1": 12}, LINES: {"0": 7}}

    assert ((expected, expected), None) == (before, committed_offsets(checkpoint))
