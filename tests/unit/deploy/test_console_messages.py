"""The topic records that the console finds, and how many it keeps while searching."""

import weakref
from types import SimpleNamespace

import pytest

from towpath.deploy.console import messages
from towpath.deploy.console.messages import RecordQuery, find_records
from towpath.settings import Settings

TOPIC = "towpath.shop.orders"
SETTINGS = Settings.model_validate(
    {
        "version": 1,
        "source": [{"dsn": "", "tables": ["shop.orders"]}],
        "kafka": {"bootstrap_servers": ""},
        "registry": {"url": ""},
    }
)


class FixedMessage:
    """A record of the topic, one millisecond after the previous one."""

    def __init__(self, offset):
        self._offset = offset

    def key(self):
        """Return the same key for every record but the first."""
        return b"7" if self._offset else b"8"

    def value(self):
        """Return a row change."""
        return b'{"op": "u"}'

    def headers(self):
        """Return no headers."""
        return []

    def partition(self):
        """Return the only partition."""
        return 0

    def offset(self):
        """Return the offset."""
        return self._offset

    def timestamp(self):
        """Return the type of the timestamp, and the timestamp."""
        return 1, 1_700_000_000_000 + self._offset


class CountedText(str):
    """A value whose lifetime can be observed."""

    __slots__ = ("__weakref__",)
    __hash__ = object.__hash__


@pytest.fixture
def topic(monkeypatch):
    """Provide a topic of a thousand records, without a broker."""
    monkeypatch.setattr(messages, "topic_names", lambda _: [TOPIC])
    monkeypatch.setattr(messages, "_read", lambda *_: map(FixedMessage, range(1_000)))


@pytest.mark.usefixtures("topic")
def test_a_search_by_key_returns_the_newest_records_first():
    """
    All records count as searched, and only the requested number is returned.
    """
    found = find_records(SETTINGS, RecordQuery(TOPIC, key="7", limit=3))

    assert ([999, 998, 997], 1_000) == (
        [record["offset"] for record in found.records],
        found.read,
    )


@pytest.mark.usefixtures("topic")
def test_a_search_by_key_keeps_only_the_records_that_it_returns(monkeypatch):
    """
    A key may have fifty thousand records of a megabyte each.
    """
    live, most = weakref.WeakSet(), []

    def shown(_value, _hidden):
        text = CountedText("a megabyte")
        live.add(text)
        most.append(len(live))
        return text

    monkeypatch.setattr(messages, "shown_value", shown)
    find_records(SETTINGS, RecordQuery(TOPIC, key="7", limit=3))

    assert max(most) < 10


class FixedTopics:
    """Topics of the platform and of others, without a broker."""

    def __init__(self, _kafka):
        pass

    def names(self):
        """Return the topics of two templates, a table's, and another program's."""
        own = ["order.events", "order.events.backfill.cache", "outbox.event.order"]
        return [*own, TOPIC, "orders"]


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("outbox.event.{aggregate_type}", ["outbox.event.order"]),
        ("{aggregate_type}.events", ["order.events", "order.events.backfill.cache"]),
        ("{aggregate_type}", []),
    ],
)
def test_the_topics_of_events_are_those_of_the_template(monkeypatch, template, found):
    """
    As in Debezium, a template may begin with the type, which alone identifies no topic.
    """
    monkeypatch.setattr(messages, "Topics", FixedTopics)
    outbox = SETTINGS.relay.outbox.model_copy(update={"topic": template})
    relay = SETTINGS.relay.model_copy(update={"outbox": outbox})
    settings = SETTINGS.model_copy(update={"relay": relay})

    assert [*found, TOPIC] == messages.topic_names(settings)


def test_a_search_by_key_from_an_offset_reads_more_than_it_shows(monkeypatch):
    """
    Without a key, only the records to be shown are read.
    """
    ranges = []
    offsets = SimpleNamespace(
        names=lambda: [TOPIC],
        end_offsets=lambda _: {TOPIC: {"0": 1_000, "1": 1_000}},
        first_offsets=lambda _: {TOPIC: {"0": 0, "1": 0}},
    )
    consumer = SimpleNamespace(close=lambda: None)

    def records_to(ends, _consumer, _topic, begins):
        ranges.append((dict(begins), dict(ends)))
        return iter(())

    monkeypatch.setattr(messages, "Topics", lambda _: offsets)
    monkeypatch.setattr(messages.client, "consumer", lambda *_: consumer)
    monkeypatch.setattr(messages, "records_to", records_to)
    for key in ("7", None):
        find_records(
            SETTINGS, RecordQuery(TOPIC, key=key, partition=0, offset=100, limit=3)
        )

    assert [({0: 100}, {0: 1_000}), ({0: 100}, {0: 103})] == ranges
