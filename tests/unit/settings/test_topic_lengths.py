"""Topics whose names are too long for Kafka are mistakes in the file."""

import pytest

from support.configuration import ADDRESSES, mistakes_of


def mistakes(
    prefix: str = "towpath",
    table: str = "orders",
    sink: str = "it",
    signals: str = "",
) -> tuple[str, ...]:
    """List the mistakes in a file that has these names."""
    route = {"topic": "o", "name": "shop.events", "kind": "event_log"}
    lake = {"kind": "warehouse", "url": ADDRESSES["warehouse"], "folder": "lake"}
    document: dict[str, object] = {
        "version": 1,
        "source": [
            {
                "dsn": "postgresql://localhost/shop",
                "prefix": prefix,
                "tables": [f"shop.{table}", r"shop\.order.*"],
            }
        ],
        "kafka": {"bootstrap_servers": "localhost:9092"},
        "relay": {"snapshot": {"signal_topic": signals}},
        "sinks": {"state_copies": True},
        "sink": [{"name": sink, "route": [route], **lake}],
    }
    return mistakes_of(document)


@pytest.mark.parametrize(
    ("fits", "names", "expected"),
    [
        (
            {"prefix": "p" * 228},
            {"prefix": "p" * 300},
            (
                "source.prefix: the topic of heartbeats has 321 characters; Kafka "
                "allows 249: shorten the prefix"
            ),
        ),
        (
            {"prefix": "p" * 200, "table": "t" * 43},
            {"prefix": "p" * 200, "table": "t" * 44},
            (
                f"source.tables: the topic of the table shop.{'t' * 44} has 250 "
                "characters; Kafka allows 249: shorten source.prefix, or leave the "
                "table out"
            ),
        ),
        (
            {"prefix": "p" * 200, "signals": "{prefix}" + "s" * 49},
            {"prefix": "p" * 200, "signals": "{prefix}" + "s" * 50},
            (
                "relay.snapshot.signal_topic: the topic of signals has 250 characters; "
                "Kafka allows 249: shorten it, or source.prefix"
            ),
        ),
        (
            {"sink": "i" * 236},
            {"sink": "i" * 237},
            (
                f"sink.{'i' * 237}.name: the topic of its dead letters has 250 "
                "characters; Kafka allows 249: give the sink a shorter name"
            ),
        ),
    ],
)
def test_a_topic_that_kafka_would_refuse_is_a_mistake(
    fits: dict[str, object], names: dict[str, object], expected: str
):
    """
    The longest names are accepted; if a name is longer, its key is reported once.
    """
    assert () == mistakes(**fits)
    assert (expected,) == mistakes(**names)
