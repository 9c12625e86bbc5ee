"""Operating consumers: status, prune and metrics, with real Kafka and Postgres."""

import json

import pytest
from confluent_kafka import TopicPartition
from prometheus_client import CollectorRegistry

from support.inbox_place import InboxPlace, event
from support.waiting import until
from towpath.cli.app import run
from towpath.inbox import Inbox, Observer, consumer
from towpath.inbox.metrics import InboxMetrics
from towpath.schemas.transactions import drive

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

APPLIED = "towpath_inbox_applied_total"
DUPLICATES = "towpath_inbox_skipped_duplicates_total"
RETRIES = "towpath_inbox_retries_total"
PARKED = "towpath_inbox_parked_total"
HANDLED = "towpath_inbox_handler_seconds_count"


@pytest.fixture
def rig(stack, database, unique):
    """Provide a consumer, its database and its topic."""
    stack.up("postgres", "kafka")
    made = InboxPlace(database, stack.kafka, unique)
    yield made
    made.close()


@pytest.fixture
def metrics(rig, monkeypatch):
    """Provide an observer that reports often, and a function that reads a sample."""
    monkeypatch.setattr(consumer, "OBSERVE_INTERVAL_S", 0.1)
    registry = CollectorRegistry()
    observer = InboxMetrics(registry).of(rig.inbox)

    def value(name, **labels):
        return registry.get_sample_value(name, {"consumer": rig.name, **labels})

    return observer, value


def options(rig, *more):
    """Return the options that every command needs, followed by further ones."""
    return ["--dsn", rig.dsn, "--kafka", rig.kafka, *more]


def status(rig, capsys, *more, code):
    """Run ``towpath inbox status``; return its document."""
    capsys.readouterr()
    assert code == run(["inbox", "status", *options(rig, "--json", *more)])
    return json.loads(capsys.readouterr().out)


def test_status_shows_the_progress_of_each_consumer(rig, capsys):
    """
    Partitions have offsets, lags and id counts; consumers have counts of parked events.
    """
    rig.refused = {2}
    rig.send("a", 1, 2, 3, partition=0)
    rig.send("b", 10, partition=1)
    with rig.running(attempts=1):
        until(lambda: rig.counts("b") == [10], "the other partition is read")
        until(lambda: len(rig.parked()) == 2, "two events are parked")
    rig.send("b", 11, 12, partition=1)
    with rig.begin() as session:
        drive(session, Inbox("other").take(event(topic="gone")))
        keyless = event(id="x", key=None, topic=rig.topic, offset=99)
        drive(session, rig.inbox.park(keyless, "unreadable"))
    (found, other) = sorted(
        status(rig, capsys, code=1), key=lambda one: one["consumer"] == "other"
    )
    rows = [
        tuple(one[name] for name in ("committed_offset", "end_offset", "lag", "ids"))
        for one in found["partitions"]
    ]
    (oldest,) = rig.connection.execute(
        "select min(parked_at) from towpath.inbox_parked"
    ).fetchone()

    assert [(3, 3, 0, 4), (1, 3, 2, 1), (None, 0, 0, 0)] == rows
    assert {
        "consumer": rig.name,
        "lag": 2,
        "ids": 5,
        "parked_events": 3,
        "parked_keys": 1,
        "oldest_parked_at": str(oldest),
    } == {name: one for name, one in found.items() if name != "partitions"}
    assert ("other", 0, 1, []) == (
        *(other["consumer"], other["parked_events"]),
        *(other["ids"], other["partitions"]),
    )
    assert [other] == status(rig, capsys, "--consumer", "other", code=0)
    assert 1 == run(["inbox", "status", *options(rig)])
    assert f"{rig.topic}/1" in capsys.readouterr().out


def test_records_lost_to_retention_do_not_count_as_lag(rig, capsys):
    """
    Records that the topic no longer contains are not counted.
    """
    rig.send("a", 1, partition=0)
    with rig.running():
        rig.wait_counts(1)
    rig.send("a", 2, 3, 4, partition=0)
    cut = TopicPartition(rig.topic, 0, 3)
    rig.admin.delete_records([cut])[cut].result()
    (found,) = status(rig, capsys, "--consumer", rig.name, code=0)

    assert (1, 4, 1) == tuple(
        found["partitions"][0][name]
        for name in ("committed_offset", "end_offset", "lag")
    )


def test_the_command_prunes_ids_of_events_that_left_the_topics(rig, capsys):
    """
    Ids of other consumers, of parked events and of events still in the topics are kept.
    """
    rig.refused = {2}
    rig.send("a", 1, 2, partition=0)
    rig.send("b", 10, 11, partition=0)
    with rig.running(attempts=1):
        rig.wait_counts(1, 10, 11)
    with rig.begin() as session:
        for name, topic in (("other", rig.topic), (rig.name, "gone")):
            drive(session, Inbox(name).take(event(topic=topic)))
    args = ["inbox", "prune", *options(rig, "--consumer", rig.name)]
    capsys.readouterr()
    assert 0 == run(args)
    cut = TopicPartition(rig.topic, 0, 3)
    rig.admin.delete_records([cut])[cut].result()
    assert 0 == run(args)
    rows = rig.connection.execute(
        'select consumer = %s, topic, "offset" from towpath.inbox order by 1, 2, 3',
        [rig.name],
    ).fetchall()

    assert "ids pruned: 0\nids pruned: 2\n" == capsys.readouterr().out
    assert {
        (False, rig.topic, 0),
        (True, "gone", 0),
        (True, rig.topic, 1),
        (True, rig.topic, 3),
    } == {*rows}


def test_a_command_reports_missing_tables_and_wrong_settings(rig, capsys, tmp_path):
    """
    An unknown client setting, an unreachable broker and missing tables are reported.
    """
    file = tmp_path / "client.properties"
    named = ["--kafka-file", str(file), "--consumer", "x"]
    file.write_text("no.such.setting=1", "utf-8")
    assert 2 == run(["inbox", "status", *options(rig, *named)])
    assert 'No such configuration property: "no.such' in capsys.readouterr().err
    file.write_text("socket.timeout.ms=1000", "utf-8")
    assert 0 == run(["inbox", "status", *options(rig, *named)])
    unreachable = ["--dsn", rig.dsn, "--kafka", "127.0.0.1:1"]
    assert 3 == run(["inbox", "status", *unreachable, *named])
    assert "Kafka cannot be reached" in capsys.readouterr().err
    for command in ("status", "prune"):
        chosen = ["--schema", "other", "--consumer", "x"]
        assert 2 == run(["inbox", command, *options(rig, *chosen)])
        assert 'towpath inbox create --schema "other"' in capsys.readouterr().err


def test_metrics_count_the_actions_of_a_consumer(rig, metrics):
    """
    Duplicates are counted even for a parked key, and the lag is measured.
    """
    observer, value = metrics
    topic = rig.topic
    rig.refused = {2}
    first, *_ = rig.send("a", 1, 2, 3, partition=0)
    rig.send("a", 1, event_id=first, partition=0)
    rig.send("b", 10, 10, event_id="b", partition=1)
    with rig.running(attempts=3, observer=observer):
        until(
            lambda: value("towpath_inbox_parked_events") == 2,
            "the parked events are counted",
        )
        until(lambda: value(DUPLICATES, topic=topic) == 2, "duplicates are counted")
        counted = [value(name, topic=topic) for name in (APPLIED, RETRIES, PARKED)]
        handled = value(HANDLED, topic=topic)
        lag = {"topic": topic, "partition": "0"}
        until(lambda: value("towpath_inbox_lag_records", **lag) == 0, "there is no lag")
        rig.refused.clear()
        with rig.begin() as session:
            rig.inbox.request_replay(session)
        until(lambda: value("towpath_inbox_parked_events") == 0, "no event is parked")
        until(lambda: value(APPLIED, topic=topic) == 4, "the replays are counted")

    assert ([2, 2, 2], 5) == (counted, handled)
    assert value("towpath_inbox_lag_records", **lag) is None


def test_lag_includes_the_event_that_is_retried(rig, metrics):
    """
    Neither that event nor any later one has been handled yet.
    """
    observer, value = metrics
    rig.refused = {1}
    rig.send("a", 1, 2, 3, partition=0)
    with rig.running(attempts=1_000, observer=observer):
        lag = {"topic": rig.topic, "partition": "0"}
        until(
            lambda: value("towpath_inbox_lag_records", **lag) == 3,
            "all events count as lag",
        )
        rig.down = True
        until(lambda: rig.begun > 20, "the database fails in the meantime")
        rig.down = False
        rig.refused.clear()
        until(lambda: value("towpath_inbox_lag_records", **lag) == 0, "there is no lag")


def test_a_failing_observer_does_not_affect_the_consumer(rig):
    """
    Each event has one effect, and none is retried.
    """

    class Broken(Observer):
        def handled(self, *facts):
            raise RuntimeError(facts)

        applied = handled

    rig.send("a", 1, 2)
    with rig.running(observer=Broken()):
        rig.wait_counts(1, 2)

    assert [1, 2] == rig.calls
