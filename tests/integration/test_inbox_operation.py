"""Looking after consumers: status, prune and metrics, with real Kafka and Postgres."""

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
def place(stack, database, unique):
    """Provide a consumer's database and topic."""
    stack.up("postgres", "kafka")
    made = InboxPlace(database, stack.kafka, unique)
    yield made
    made.close()


@pytest.fixture
def metrics(place, monkeypatch):
    """Provide metrics that are read often, and what returns a sample's value."""
    monkeypatch.setattr(consumer, "OBSERVE_INTERVAL_S", 0.1)
    registry = CollectorRegistry()
    observer = InboxMetrics(registry).of(place.inbox)

    def value(name, **labels):
        return registry.get_sample_value(name, {"consumer": place.name, **labels})

    return observer, value


def options(place, *more):
    """Return the options of a command."""
    return ["--dsn", place.dsn, "--kafka", place.kafka, *more]


def status(place, capsys, *more, code):
    """Run ``towpath inbox status``; return its document."""
    capsys.readouterr()
    assert code == run(["inbox", "status", *options(place, "--json", *more)])
    return json.loads(capsys.readouterr().out)


def test_status_shows_how_far_each_consumer_is(place, capsys):
    """
    Offsets, lag and ids by partition; parked keys and events, and the oldest.
    """
    place.refused = {2}
    place.send("a", 1, 2, 3, partition=0)
    place.send("b", 10, partition=1)
    with place.running(attempts=1):
        until(lambda: place.counts("b") == [10], "the other partition is read")
        until(lambda: len(place.parked()) == 2, "two events are parked")
    place.send("b", 11, 12, partition=1)
    with place.begin() as session:
        drive(session, Inbox("other").take(event(topic="gone")))
        keyless = event(id="x", key=None, topic=place.topic, offset=99)
        drive(session, place.inbox.park(keyless, "unreadable"))
    (found, other) = sorted(
        status(place, capsys, code=1), key=lambda one: one["consumer"] == "other"
    )
    rows = [
        tuple(one[name] for name in ("committed_offset", "end_offset", "lag", "ids"))
        for one in found["partitions"]
    ]
    (oldest,) = place.connection.execute(
        "select min(parked_at) from towpath.inbox_parked"
    ).fetchone()

    assert [(3, 3, 0, 4), (1, 3, 2, 1), (None, 0, 0, 0)] == rows
    assert {
        "consumer": place.name,
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
    assert [other] == status(place, capsys, "--consumer", "other", code=0)
    assert 1 == run(["inbox", "status", *options(place)])
    assert f"{place.topic}/1" in capsys.readouterr().out


def test_retention_that_overtook_a_group_is_no_lag(place, capsys):
    """
    Records that the topic no longer contains are not counted.
    """
    place.send("a", 1, partition=0)
    with place.running():
        place.wait_counts(1)
    place.send("a", 2, 3, 4, partition=0)
    cut = TopicPartition(place.topic, 0, 3)
    place.admin.delete_records([cut])[cut].result()
    (found,) = status(place, capsys, "--consumer", place.name, code=0)

    assert (1, 4, 1) == tuple(
        found["partitions"][0][name]
        for name in ("committed_offset", "end_offset", "lag")
    )


def test_the_command_prunes_what_the_topics_no_longer_contain(place, capsys):
    """
    Ids of what can be read again, of parked events and of other consumers stay.
    """
    place.refused = {2}
    place.send("a", 1, 2, partition=0)
    place.send("b", 10, 11, partition=0)
    with place.running(attempts=1):
        place.wait_counts(1, 10, 11)
    with place.begin() as session:
        for name, topic in (("other", place.topic), (place.name, "gone")):
            drive(session, Inbox(name).take(event(topic=topic)))
    words = ["inbox", "prune", *options(place, "--consumer", place.name)]
    capsys.readouterr()
    assert 0 == run(words)
    cut = TopicPartition(place.topic, 0, 3)
    place.admin.delete_records([cut])[cut].result()
    assert 0 == run(words)
    rows = place.connection.execute(
        'select consumer = %s, topic, "offset" from towpath.inbox order by 1, 2, 3',
        [place.name],
    ).fetchall()

    assert "ids pruned: 0\nids pruned: 2\n" == capsys.readouterr().out
    assert {
        (False, place.topic, 0),
        (True, "gone", 0),
        (True, place.topic, 1),
        (True, place.topic, 3),
    } == {*rows}


def test_a_command_without_its_parts_names_them(place, capsys, tmp_path):
    """
    Kafka that does not answer, a setting that it does not know, tables that are absent.
    """
    file = tmp_path / "client.properties"
    named = ["--kafka-file", str(file), "--consumer", "x"]
    file.write_text("no.such.setting=1", "utf-8")
    assert 2 == run(["inbox", "status", *options(place, *named)])
    assert 'No such configuration property: "no.such' in capsys.readouterr().err
    file.write_text("socket.timeout.ms=1000", "utf-8")
    assert 0 == run(["inbox", "status", *options(place, *named)])
    away = ["--dsn", place.dsn, "--kafka", "127.0.0.1:1"]
    assert 3 == run(["inbox", "status", *away, *named])
    assert "Kafka cannot be reached" in capsys.readouterr().err
    for command in ("status", "prune"):
        words = ["--schema", "other", "--consumer", "x"]
        assert 2 == run(["inbox", command, *options(place, *words)])
        assert 'towpath inbox create --schema "other"' in capsys.readouterr().err


def test_metrics_count_what_a_consumer_does(place, metrics):
    """
    Effects, duplicates (one of a parked key), retries, parked events, handlers, lag.
    """
    observer, value = metrics
    topic = place.topic
    place.refused = {2}
    first, *_ = place.send("a", 1, 2, 3, partition=0)
    place.send("a", 1, event_id=first, partition=0)
    place.send("b", 10, 10, event_id="b", partition=1)
    with place.running(attempts=3, observer=observer):
        until(
            lambda: value("towpath_inbox_parked_events") == 2,
            "the parked events are counted",
        )
        until(lambda: value(DUPLICATES, topic=topic) == 2, "duplicates are counted")
        counted = [value(name, topic=topic) for name in (APPLIED, RETRIES, PARKED)]
        handled = value(HANDLED, topic=topic)
        lag = {"topic": topic, "partition": "0"}
        until(
            lambda: value("towpath_inbox_lag_records", **lag) == 0, "nothing is behind"
        )
        place.refused.clear()
        with place.begin() as session:
            place.inbox.request_replay(session)
        until(lambda: value("towpath_inbox_parked_events") == 0, "none is parked")
        until(lambda: value(APPLIED, topic=topic) == 4, "the replays are counted")

    assert ([2, 2, 2], 5) == (counted, handled)
    assert value("towpath_inbox_lag_records", **lag) is None


def test_lag_counts_the_event_that_is_retried(place, metrics):
    """
    It and all behind it are not handled yet.
    """
    observer, value = metrics
    place.refused = {1}
    place.send("a", 1, 2, 3, partition=0)
    with place.running(attempts=1_000, observer=observer):
        lag = {"topic": place.topic, "partition": "0"}
        until(lambda: value("towpath_inbox_lag_records", **lag) == 3, "all are behind")
        place.down = True
        until(lambda: place.begun > 20, "the database fails meanwhile")
        place.down = False
        place.refused.clear()
        until(lambda: value("towpath_inbox_lag_records", **lag) == 0, "none is behind")


def test_an_observer_that_fails_changes_nothing(place):
    """
    Each effect stands once, and no event is retried.
    """

    class Broken(Observer):
        def handled(self, *facts):
            raise RuntimeError(facts)

        applied = handled

    place.send("a", 1, 2)
    with place.running(observer=Broken()):
        place.wait_counts(1, 2)

    assert [1, 2] == place.calls
