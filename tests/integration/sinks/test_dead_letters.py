"""The dead-letter topic on a real broker, and the command that handles it."""

import json
import textwrap
import threading
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.copying import replace
from support.dead_letters import RecordedRepairs, context_of
from support.parked_shop import RefusingSink, change
from support.topics import limit_records
from towpath.cli.app import run
from towpath.settings import Kafka, load
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.apply.replay import DeadLetterRequests
from towpath.sinks.change import Origin, Record
from towpath.sinks.changes.routing import Routes
from towpath.sinks.cli import dead_letters
from towpath.sinks.dead_letters.entries import (
    DeadLetter,
    DeadLetterRequest,
    Subject,
    Verb,
)
from towpath.sinks.dead_letters.parked import OpenDeadLetters, ParkedKeys
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.kafka.client import Topics
from towpath.sinks.kafka.dead_letter_topic import DeadLetterTopic
from towpath.sinks.kafka.offsets import KafkaEarliestPositions

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.fixture
def config(stack, unique, tmp_path, monkeypatch):
    """Write a configuration with one cache."""
    # Otherwise all later log records would go to this test's captured standard error.
    monkeypatch.setattr(dead_letters, "configure_logs", lambda: None)
    stack.up("kafka")
    path = tmp_path / "towpath.toml"
    text = f"""
        version = 1
        state_folder = "state"
        [[source]]
        dsn = "postgresql://unused/shop"
        prefix = "{unique}"
        [kafka]
        bootstrap_servers = "{stack.kafka}"
        [registry]
        url = "http://unused"
        [[sink]]
        name = "cache"
        kind = "cache"
        driver = "serving"
        url = "redis://unused"
        [[sink.route]]
        topic = "{unique}.shop.orders"
        name = "orders"
    """
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


class Process:
    """The driver's record writer and its dead letter requests, without an engine."""

    def __init__(self, config, sink):
        settings = load(config, {})
        self.topic = f"{settings.database.prefix}.shop.orders"
        self.letters = DeadLetterTopic(settings, "cache")
        self.repairs = RecordedRepairs()
        parked = ParkedKeys()
        open_dead_letters = OpenDeadLetters(frozenset())
        for entry in self.letters.entries():
            open_dead_letters.read([entry])
            parked.restore([entry])
        context = context_of(self.letters, parked=parked, repairs=self.repairs)
        self.writer = RecordWriter(Routes(settings.sink_named("cache")), sink, context)
        self.requests = DeadLetterRequests(
            self.writer, self.letters, parked, self.repairs, context.clock
        )
        self.requests.restore(open_dead_letters)

    def write(self, *records):
        """Write a batch of the table's records."""
        moved = [
            replace(r, origin=replace(r.origin, topic=self.topic)) for r in records
        ]
        return self.writer.write_records(moved, 0)

    @contextmanager
    def processing_requests(self):
        """Process requests, as the supervisor does."""
        stop = threading.Event()

        def process():
            while not stop.wait(0.05):
                self.requests.process()

        thread = threading.Thread(target=process)
        thread.start()
        yield
        stop.set()
        thread.join()


def printed(capsys):
    """Return the JSON that a command prints after its log records."""
    out = capsys.readouterr().out
    return json.loads(out[out.index("\n[") + 1 if out[0] != "[" else 0 :])


def test_parked_keys_are_listed_replayed_and_discarded(config, capsys):
    """
    The sink handles the requests; a key that it refuses again is kept and reported.
    """
    sink = RefusingSink()
    process = Process(config, sink)
    process.write(change(1, note="bad"), change(2, order=8, note="bad"))
    process = Process(config, sink)
    process.write(
        change(3, status="paid", unchanged=["note"]), change(4, order=8, note="d")
    )
    options = ["--sink", "cache", "--json", "--config", str(config)]
    codes = [run(["dead-letters", "list", *options])]
    listed = printed(capsys)
    with process.processing_requests():
        codes.append(run(["dead-letters", "replay", "--key", "7", *options]))
        refused = printed(capsys)
        sink.is_repaired = True
        codes.append(run(["dead-letters", "replay", "--key", "7", *options]))
        codes.append(run(["dead-letters", "discard", "--all", *options]))
    capsys.readouterr()
    codes.append(run(["dead-letters", "list", *options]))

    assert (
        [(7, 2, "the note is too long"), (8, 2, "the note is too long")],
        "remains a dead letter: the note is too long",
        [1, 1, 0, 0, 0],
        [],
        {"7": "bad"},
        # Later changes may have repaired the rows, so each is refetched; so is the row
        # of a discarded key.
        [("orders", (7,)), ("orders", (8,)), ("orders", (8,))],
    ) == (
        [(json.loads(x["key"])["order_id"], x["letters"], x["reason"]) for x in listed],
        refused[0]["outcome"],
        codes,
        printed(capsys),
        sink.notes,
        process.repairs.keys,
    )


def test_a_command_times_out_if_the_sink_is_not_running(config):
    """
    The command exits with 3; its request is executed once the sink runs.
    """
    sink = RefusingSink()
    Process(config, sink).write(change(1, note="bad"))
    options = ["--sink", "cache", "--config", str(config)]
    code = run(["dead-letters", "replay", "--all", "--timeout", "0.1", *options])
    sink.is_repaired = True
    Process(config, sink).requests.process()

    assert (3, {"7": "bad"}) == (code, sink.notes)


def test_a_dead_letter_is_shown_in_full(config, capsys):
    """
    The key, the value and the headers are shown as in the record.
    """
    Process(config, RefusingSink()).write(change(1, note="bad"))
    options = ["--sink", "cache", "--json", "--config", str(config)]
    run(["dead-letters", "show", "--key", "7", *options])
    (letter,) = printed(capsys)

    assert ('{"order_id":7}', True, "0000000000000008.0000000000") == (
        letter["key"],
        '"note":"bad"' in letter["value"],
        letter["headers"]["position"],
    )


def test_dead_letters_outlive_retention_in_writing_order(config):
    """
    The topic has one partition without retention, so the order of writing is kept.
    """
    settings = load(config, {})
    topic = DeadLetterTopic(settings, "cache")
    letters = [
        DeadLetter(
            Record(Origin("t", n % 3, n), b"%d" % n, None, {}), "why", "r", False
        )
        for n in range(300)
    ]
    topic.put(letters)

    assert (letters, {topic.name: {"0": 300}}) == (
        list(DeadLetterTopic(settings, "cache").entries()),
        Topics(settings.kafka).end_offsets([topic.name]),
    )


def test_a_record_at_its_topics_limit_becomes_a_dead_letter(config):
    """
    The copy exceeds the default limit; the error at a lower limit names the setting.
    """
    settings = load(config, {})
    topic = DeadLetterTopic(settings, "cache")
    record = Record(Origin("t", 0, 1), b"1", b"x" * 1_048_500, {})
    letters = [DeadLetter(record, "why", "r", False)]
    topic.put(letters)
    stored = list(DeadLetterTopic(settings, "cache").entries())
    limit_records(settings.kafka.bootstrap_servers, topic.name, 1000)

    with pytest.raises(BrokerUnavailableError, match=r"topic's max\.message\.bytes"):
        topic.put(letters)
    assert letters == stored


def test_requests_in_a_recreated_topic_are_found(config):
    """
    The offsets of the new topic begin below those that a running sink has read.
    """
    settings = load(config, {})
    sink_topic, command_topic = (DeadLetterTopic(settings, "cache") for _ in range(2))
    subject = Subject("t", b"1")
    requests = [DeadLetterRequest(f"{n}", Verb.REPLAY, subject) for n in range(4)]
    sink_topic.request(requests[:3])
    before = list(sink_topic.entries())
    Topics(settings.kafka).delete([sink_topic.name])
    missing = sink_topic.requests()
    command_topic.request(requests[3:])

    assert (requests[:3], [], requests[3:]) == (
        before,
        missing,
        sink_topic.requests(),
    )


def test_writing_dead_letters_fails_without_a_broker(config, unused_port, monkeypatch):
    """
    The error is temporary, so the batch is retried.
    """
    monkeypatch.setattr("towpath.sinks.kafka.client.REQUEST_TIMEOUT_S", 0.5)
    text = config.read_text(encoding="utf-8")
    settings = load(config, {})
    unreachable = text.replace(
        settings.kafka.bootstrap_servers, f"127.0.0.1:{unused_port}"
    )
    config.write_text(unreachable, encoding="utf-8")
    letter = DeadLetter(Record(Origin("t", 0, 0), None, None, {}), "why", "", False)

    with pytest.raises(BrokerUnavailableError):
        DeadLetterTopic(load(config, {}), "cache").put([letter])


def test_the_lowest_position_at_the_start_of_partitions_is_found(stack, unique):
    """
    The first record of each partition counts; without a position there is no result.
    """
    stack.up("kafka")
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.create_topics([NewTopic(unique, 3, 1)])[unique].result()
    producer = Producer({"bootstrap.servers": stack.kafka})
    for number, partition in ((7, 0), (3, 0), (5, 1), (9, 1)):
        headers = {"position": f"{number:016x}.0000000000"}
        producer.produce(unique, b"v", partition=partition, headers=headers)
    producer.flush()
    heads = KafkaEarliestPositions(Kafka(bootstrap_servers=stack.kafka))
    found = heads.lowest_position([unique])
    producer.produce(unique, b"v", partition=2)
    producer.flush()

    assert (f"{5:016x}.0000000000", None) == (found, heads.lowest_position([unique]))
