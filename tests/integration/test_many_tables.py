"""Tables that match one pattern: more tables do not require more requests."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from support.rig import Rig
from support.waiting import CLOCK, until
from towpath.relay.kafka.reading import TopicReader
from towpath.relay.kafka.state import StateTopic
from towpath.relay.kafka.topics import KafkaTopics
from towpath.relay.postgres.connect import connect
from towpath.relay.postgres.tables import (
    TableRefusedError,
    describe,
    describe_all,
)
from towpath.settings import Kafka, Topics, load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TABLES = 60
CREATE_TABLES = """
create schema many;
create table many.bare (note text);
do $$ begin
  for n in 1..60 loop
    execute format('create table many.t%s (id int primary key, note text)', n);
    execute format('insert into many.t%s values (1, ''a''), (2, ''b'')', n);
  end loop;
end $$
"""
SIGNAL = """
insert into towpath.signal (id, type, data) values ('all', 'execute-snapshot',
  '{"data-collections": ["many[.].*"]}')
"""


@pytest.fixture
def rig(stack, database: str, unique: str, tmp_path: Path) -> Iterator[Rig]:
    """Provide a prepared database with many tables; its relay is not running yet."""
    made = Rig(database, stack.kafka, unique, tmp_path)
    made.execute(CREATE_TABLES)
    made.configure(made.outbox, tables=("many[.]t.*",), partitions=2)
    made.init()
    yield made
    made.close()


def counted(monkeypatch, owner: type, *names: str) -> Counter[str]:
    """Count calls to methods without changing their behavior."""
    calls: Counter[str] = Counter()

    def count(name: str, method: Any) -> None:
        def call(self: Any, *given: Any, **more: Any) -> Any:
            calls[name] += 1
            return method(self, *given, **more)

        monkeypatch.setattr(owner, name, call)

    for name in names:
        count(name, getattr(owner, name))
    return calls


def test_topics_are_created_and_described_together(stack, unique: str, monkeypatch):
    """
    Sixty topics take as many requests as one topic.
    """
    kafka = Kafka(bootstrap_servers=stack.kafka)
    methods = (
        "create_topics",
        "describe_configs",
        "describe_topics",
        "list_topics",
        "list_offsets",
    )
    calls = counted(monkeypatch, AdminClient, *methods)
    found = []
    for count in (1, TABLES):
        topics = KafkaTopics(kafka, Topics(partitions=2), CLOCK)
        prefix, names = f"{unique}{count}", [f"many.t{n}" for n in range(count)]
        partitions = [(f"{prefix}.{name}", 0) for name in names]
        topics.open(prefix, names)
        topics.known_ends(partitions)
        made = calls["create_topics"]
        # A new topic may take more requests until each broker knows it.
        calls.clear()
        topics.open(prefix, names)
        facts = [topics.ensure(f"{prefix}.{name}") for name in names]
        topics.known_ends(partitions)
        assert {each.partition_count for each in facts} == {2}
        found.append((made, dict(calls)))
        calls.clear()

    assert found[0] == found[1]


class CreatingClock:
    """A clock that creates a topic at its first wait, and records its waits."""

    def __init__(self, make: Callable[[], None]) -> None:
        self.waits: list[float] = []
        self._make = make
        self.now, self.monotonic_s = CLOCK.now, CLOCK.monotonic_s

    def wait(self, delay_s: float) -> None:
        """Create the topic at the first call; then wait."""
        self.waits.append(delay_s)
        if len(self.waits) == 1:
            self._make()
        CLOCK.wait(delay_s)


def test_only_unknown_topics_are_requested_again(stack, unique: str, monkeypatch):
    """
    The lookup of end offsets waits for a topic that does not exist yet.
    """
    kafka, settings = Kafka(bootstrap_servers=stack.kafka), Topics(partitions=1)
    made = KafkaTopics(kafka, settings, CLOCK)
    made.ensure(f"{unique}.first")
    clock = CreatingClock(lambda: made.recreate(unique, {f"{unique}.second": 1}))
    requested: list[set[str]] = []
    list_offsets = AdminClient.list_offsets

    def listing(self: Any, partitions: Any, **more: Any) -> Any:
        requested.append({one.topic for one in partitions})
        return list_offsets(self, partitions, **more)

    monkeypatch.setattr(AdminClient, "list_offsets", listing)
    partitions = [(f"{unique}.first", 0), (f"{unique}.second", 0)]
    ends = KafkaTopics(kafka, settings, clock).known_ends(partitions)

    assert ends == dict.fromkeys(partitions, 0)
    assert requested[0] == {f"{unique}.first", f"{unique}.second"}
    assert all(each == {f"{unique}.second"} for each in requested[1:])
    assert len(requested) == 1 + len(clock.waits)


def test_tables_are_described_together(rig: Rig, monkeypatch):
    """
    Sixty tables take two round trips, and give the same descriptions as one at a time.
    """
    names = [f"many.t{n}" for n in range(1, TABLES + 1)]
    calls = counted(monkeypatch, psycopg.Connection, "pipeline")
    with connect(rig.dsn) as connection:
        together = describe_all(
            connection, [*names, "many.bare", "many.none"], "towpath"
        )
        alone = {name: describe(connection, name, "towpath") for name in names}

    assert calls["pipeline"] == 2
    assert {name: together[name] for name in names} == alone
    for name in ("many.bare", "many.none"):
        assert isinstance(together[name], TableRefusedError)


def test_a_start_stores_the_first_marks_of_all_tables(rig: Rig):
    """
    A table's first change does not wait for its topic; a snapshot reads every table.
    """
    rig.start()
    rig.wait_for(lambda: bool(rig.logged("relay streaming")))
    settings = load(rig.config, {})
    with TopicReader(settings.kafka) as reader:
        marks = StateTopic(settings.kafka, rig.prefix).read(reader).marks
    names = {rig.topic(f"many.t{n}") for n in range(1, TABLES + 1)}
    assert names <= set(marks)

    rig.execute(SIGNAL)
    status = "select status from towpath.signal where id = 'all'"
    until(lambda: rig.one(status) == "completed", "all tables are read")
    read = "select count(*), sum(rows) from towpath.snapshot where snapshot_id = 'all'"

    assert tuple(map(int, rig.execute(read)[0])) == (TABLES, 2 * TABLES)
