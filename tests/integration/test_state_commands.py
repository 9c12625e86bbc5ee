"""The commands for the relay's state, with a real Postgres and a real Kafka."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.rig import Rig
from support.topics import read_to_end
from support.waiting import CLOCK, until
from towpath.cli import app as root
from towpath.relay.kafka.reading import TopicReader
from towpath.relay.kafka.recovery import scan_topics
from towpath.relay.kafka.state import StateTopic
from towpath.relay.kafka.topics import KafkaTopics
from towpath.relay.recovery.marks import Mark
from towpath.relay.recovery.state import State
from towpath.schemas.position import format_lsn, format_position
from towpath.schemas.topics import state_topic
from towpath.settings import Settings, load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

TABLES = """
create schema shop;
create table shop.item (id int primary key, note text);
"""
GAP = {
    "reason": "slot towpath no longer exists",
    "since_lsn": 0x5000,
    "at": "2026-01-02T03:04:05+00:00",
    "plan": ["shop.item"],
    "started": False,
}


class Site(Rig):
    """A prepared database, its topics, and the commands that the tests run on them."""

    def __init__(self, dsn: str, kafka: str, prefix: str, folder: Path, capsys) -> None:
        super().__init__(dsn, kafka, prefix, folder)
        self._capsys = capsys
        self.execute(TABLES)
        self.configure(self.outbox, tables=("shop.item",), partitions=2)
        self.run("relay", "init")

    @property
    def settings(self) -> Settings:
        return load(self.config, {})

    @property
    def state(self) -> StateTopic:
        return StateTopic(self.settings.kafka, self.prefix)

    def stored(self) -> State:
        """Read the stored state."""
        with TopicReader(self.settings.kafka) as reader:
            return self.state.read(reader)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command; return its exit code, standard output and standard error."""
        code = root.run([*arguments, "--config", str(self.config)])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err

    def confirmed_lsn(self) -> int:
        """Return the confirmed LSN of the slot."""
        row = self.connection.execute(
            "select (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint"
            " from pg_replication_slots where slot_name = %s",
            (self.prefix,),
        ).fetchone()
        assert row is not None
        return row[0]

    def make_topics(self) -> None:
        """Create the topics that a relay creates when it starts."""
        settings = self.settings
        topics = KafkaTopics(settings.kafka, settings.topics, CLOCK)
        topics.open(self.prefix, ())
        self._capsys.readouterr()

    def make_state(self, *, gap: dict | None = None) -> int:
        """Write a state as a relay would; return the confirmed LSN."""
        self.make_topics()
        lsn = self.confirmed_lsn()
        lineage = {
            "number": 1,
            "system_identifier": "77",
            "timeline": 1,
            "offset": 0,
            "slot": self.prefix,
            "gap": gap,
            "start_lsn": lsn,
        }
        self.state.write("lineage", {"lineages": [lineage]})
        confirmed = {
            "lsn": lsn,
            "log_lsn": lsn,
            "published_log_lsn": lsn,
            "heartbeat": 3,
            "is_clean": False,
            "at": CLOCK.now().isoformat(),
        }
        self.state.write("confirmed", confirmed)
        return lsn

    def commit_lsns(self) -> list[int]:
        """Return the commit LSNs that the slot has not streamed yet."""
        rows = self.connection.execute(
            "select data from pg_logical_slot_peek_binary_changes(%s, null, null,"
            " 'proto_version', '1', 'publication_names', 'towpath')",
            (self.prefix,),
        )
        begins = [data for (data,) in rows if data[:1] == b"B"]
        return [int.from_bytes(data[1:9], "big") for data in begins]

    def is_slot_active(self) -> bool:
        """Return whether a process is streaming from the slot."""
        row = self.connection.execute(
            "select active from pg_replication_slots where slot_name = %s",
            (self.prefix,),
        ).fetchone()
        return bool(row and row[0])

    def positions(self, topic: str) -> list[tuple[bytes | None, bytes]]:
        """Return the key and the position of every record in a topic."""
        return [
            (message.key(), dict(message.headers())["position"])
            for message in read_to_end(self.kafka, topic)
        ]


@pytest.fixture
def site(stack, database, unique, tmp_path, capsys) -> Iterator[Site]:
    """Provide a prepared site."""
    site = Site(database, stack.kafka, unique, tmp_path, capsys)
    yield site
    site.close()


def test_every_command_reports_a_missing_state(site: Site):
    """
    Before the relay's first run, there is no state to show, and nothing to skip.
    """
    results = [
        site.run("relay", "state", *command)
        for command in (("show",), ("export",), ("skip", "0/8", "--yes"))
    ]

    assert all("there is no state topic" in errors for _, _, errors in results)
    assert [code for code, _, _ in results] == [2, 2, 2]


def test_show_prints_the_whole_state(site: Site):
    """
    Lineages with gaps, positions, marks, parked aggregates, skips and the slot appear.
    """
    lsn = site.make_state(gap=GAP)
    position = format_position(lsn, 0)
    marks = {"0": {"next_offset": 4, "position": position}}
    site.state.write(f"marks:{site.prefix}.shop.item", {"partitions": marks})
    site.state.write("settings", {"source": {"tables": []}, "relay": {}})
    pending = {"asked_at": "x", "done": False, "log_lsn": lsn + 8}
    site.state.write(f"skip:{format_lsn(lsn + 8)}", pending)
    producer = Producer({"bootstrap.servers": site.kafka})
    headers = {"position": position, "parked": "41[1]", "aggregate_type": "order"}
    producer.produce(f"{site.prefix}.dead.relay", b"{}", headers=headers)
    assert producer.flush(20) == 0

    code, out, err = site.run("relay", "state", "show", "--json")
    assert code == 0, err
    report = json.loads(out)
    human = site.run("relay", "state", "show")[1]
    parked = {"aggregate_type": "order", "aggregate_id": "41[1]", "since": position}

    assert report["lineages"][0]["gap"]["plan"] == ["shop.item"]
    assert report["confirmed"]["lsn"] == format_lsn(lsn)
    assert report["marks"][0]["position"] == position
    assert report["marks"][0]["end_offset"] is None
    assert report["parked"] == {"count": 1, "first": [parked]}
    assert [each["lsn"] for each in report["skips"]] == [format_lsn(lsn + 8)]
    assert "source.tables" in report["settings_differ"]
    assert report["slot"]["confirmed_lsn"] == format_lsn(lsn)
    assert "gap before lineage 1" in human

    assert "41[1]" in human


def test_show_works_without_the_source(site: Site):
    """
    If Postgres is unreachable, the state is shown with the error instead of the slot.
    """
    site.make_state()
    dsn = "postgresql://nobody@127.0.0.1:1/none"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOWPATH_SOURCE__DSN", dsn)
        code, out, _ = site.run("relay", "state", "show", "--json")
    report = json.loads(out)

    assert (code, report["slot"], bool(report["source_error"])) == (0, None, True)


def test_export_prints_every_record(site: Site):
    """
    Each line is a JSON document with an offset; the oldest record is first.
    """
    site.make_state()

    lines = site.run("relay", "state", "export")[1].splitlines()
    records = [json.loads(line) for line in lines]

    assert [record["offset"] for record in records] == [0, 1]
    assert [record["key"] for record in records] == ["lineage", "confirmed"]

    assert records[1]["value"]["heartbeat"] == 3


def test_a_skip_is_confirmed_stored_and_undone(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    """
    Only the typed LSN confirms a skip, and a pending skip can be undone.
    """
    lsn = site.make_state()
    text = format_lsn(lsn + 64)
    monkeypatch.setattr("builtins.input", lambda _: "yes")
    refused = site.run("relay", "state", "skip", text)
    assert refused[0] == 1
    assert site.stored().skips == frozenset()
    monkeypatch.setattr("builtins.input", lambda _: text)
    position = format_position(lsn + 64, 7)
    accepted = site.run("relay", "state", "skip", position)
    assert accepted[0] == 0
    assert "a slot never moves back" in " ".join(accepted[1].split())
    assert site.stored().skips == frozenset({lsn + 64})

    assert site.run("relay", "state", "skip", "--undo", text)[0] == 0
    assert site.stored().skips == frozenset()


@pytest.mark.parametrize(
    ("beyond", "reason"),
    [
        (-8, "is confirmed already"),
        (9, "is not the LSN of a commit"),
    ],
)
def test_an_invalid_skip_is_refused(site: Site, beyond: int, reason: str):
    """
    The LSN is already confirmed, or is not aligned like the LSN of a commit.
    """
    lsn = site.make_state()
    lsn -= lsn % 8
    result = site.run("relay", "state", "skip", format_lsn(lsn + beyond), "--yes")

    assert (result[0], reason in result[2]) == (2, True)


def test_nothing_can_be_skipped_without_a_lineage(site: Site):
    """
    Without a confirmed position, it is unknown which transactions are still to come.
    """
    site.make_topics()
    site.state.write("settings", {})
    result = site.run("relay", "state", "skip", "0/8", "--yes")

    assert (result[0], "has no lineage" in result[2]) == (2, True)


def test_status_reports_the_slot_and_the_state(site: Site):
    """
    The command exits with 1, because no relay is streaming from the slot.
    """
    site.make_state(gap=GAP)
    code, out, _ = site.run("relay", "status", "--json")
    report = json.loads(out)

    assert (code, report["state"], report["lineage"]) == (1, "known", 1)
    assert report["gap"] == GAP["reason"]
    assert report["marks_age_s"] < 60

    assert report["lag_bytes"] >= 0


def test_a_lost_state_is_repaired_and_nothing_is_published_twice(site: Site):
    """
    The state topic is deleted, and the slot is behind Kafka; the relay continues.
    """
    topic = f"{site.prefix}.shop.item"
    copy = "select pg_copy_logical_replication_slot(%s, %s)"
    drop = "select pg_drop_replication_slot(%s)"
    before = f"{site.prefix}_before"
    site.connection.execute(copy, (site.prefix, before))
    relay = site.start()
    insert = "insert into shop.item select n, 'x' from generate_series(%s::int, %s) n"
    site.connection.execute(insert, (1, 500))
    until(lambda: len(site.positions(topic)) == 500, "the first rows are published")
    relay.kill()
    relay.wait()
    site.connection.execute(insert, (501, 900))
    admin = AdminClient({"bootstrap.servers": site.kafka})
    admin.delete_topics([state_topic(site.prefix)])[state_topic(site.prefix)].result(20)
    until(lambda: not site.is_slot_active(), "the slot is free")
    # The copied slot has not confirmed the rows, so they are streamed again.
    site.connection.execute(drop, (site.prefix,))
    site.connection.execute(copy, (before, site.prefix))
    site.connection.execute(drop, (before,))

    dry = site.run("relay", "state", "repair", "--dry-run")
    assert (dry[0], f"marks:{topic}" in dry[1]) == (0, True)
    assert site.run("relay", "state", "repair", "--yes")[0] == 0
    assert site.run("relay", "state", "repair", "--yes")[0] == 2
    second = site.start()
    until(lambda: len(site.positions(topic)) >= 900, "all rows are published")
    second.terminate()
    assert second.wait(30) == 0
    positions = [position for _, position in site.positions(topic)]

    assert (len(positions), len(set(positions))) == (900, 900)


def test_many_replayed_dead_letters_do_not_hide_the_highest_position(site: Site):
    """
    With a lower position in its mark, the relay would publish changes again (I1).
    """
    site.make_topics()
    topic = f"{site.prefix}.shop.item"
    admin = AdminClient({"bootstrap.servers": site.kafka})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(20)
    producer = Producer({"bootstrap.servers": site.kafka})
    newest, replayed = format_position(16, 0), format_position(8, 0)
    producer.produce(topic, b"{}", headers={"position": newest})
    for _ in range(1_100):
        producer.produce(f"{site.prefix}.dead.relay", b"{}")
        producer.produce(topic, b"{}", headers={"position": replayed})
    assert producer.flush(20) == 0
    with TopicReader(site.settings.kafka) as reader:
        contents = scan_topics(reader, [topic], site.prefix)

    assert {topic: {0: Mark(1_101, newest.encode())}} == contents.marks


def test_marks_that_no_longer_fit_their_topics_are_repaired(site: Site):
    """
    The mark of a deleted topic is removed; a truncated topic gets a new mark.
    """
    lsn = site.make_state()
    gone, short = f"{site.prefix}.shop.gone", f"{site.prefix}.shop.item"
    settings = site.settings
    KafkaTopics(settings.kafka, settings.topics, CLOCK).open(
        site.prefix, ("shop.item",)
    )
    position = format_position(lsn, 0)
    for topic in (gone, short):
        each = {"next_offset": 4, "position": position}
        site.state.write(f"marks:{topic}", {"partitions": {"0": each, "1": each}})
    producer = Producer({"bootstrap.servers": site.kafka})
    headers = {"position": position}
    producer.produce(short, b"{}", partition=0, headers=headers)
    assert producer.flush(20) == 0

    result = site.run("relay", "state", "repair", "--yes")
    assert result[0] == 0, result
    marks = site.stored().marks

    assert set(marks) == {short}
    assert marks[short][0] == Mark(1, position.encode())

    assert marks[short][1] == Mark(0, None)


def test_a_skipped_transaction_becomes_dead_letters_and_others_are_published(
    site: Site,
):
    """
    Only the changes of the skipped transaction become dead letters.
    """
    topic = f"{site.prefix}.shop.item"
    first = site.start()
    site.connection.execute("insert into shop.item values (1, 'before')")
    until(lambda: len(site.positions(topic)) == 1, "the first row is published")
    first.terminate()
    assert first.wait(30) == 0
    site.connection.execute("insert into shop.item values (2, 'skipped')")
    site.connection.execute("insert into shop.item values (3, 'after')")
    lsn = format_lsn(site.commit_lsns()[0])
    assert site.run("relay", "state", "skip", lsn, "--yes")[0] == 0

    second = site.start()
    until(lambda: len(site.positions(topic)) >= 2, "the last row is published")
    until(
        lambda: len(site.positions(f"{site.prefix}.dead.relay")) >= 1,
        "the dead letter is written",
    )
    second.terminate()
    assert second.wait(30) == 0
    keys = [json.loads(key or b"")["id"] for key, _ in site.positions(topic)]
    report = json.loads(site.run("relay", "state", "show", "--json")[1])

    assert [(each["lsn"], each["done"]) for each in report["skips"]] == [(lsn, True)]

    assert sorted(keys) == [1, 3]
