"""The lag of sinks, from their offsets and the broker's."""

from towpath.deploy.status import (
    dead_letter_records,
    event_records,
    lag_records,
    table_records,
)
from towpath.settings import Settings

SETTINGS = Settings.model_validate(
    {
        "version": 1,
        "source": [{"dsn": "", "tables": ["shop.orders", "shop.customers"]}],
        "kafka": {"bootstrap_servers": ""},
        "registry": {"url": ""},
        "sink": [
            {
                "name": "cache",
                "kind": "cache",
                "url": "",
                "route": [{"topic": "towpath.shop.orders", "name": "orders"}],
            },
        ],
    }
)
CACHE = SETTINGS.sink[0]


def test_lag_is_the_difference_between_applied_and_end_offsets():
    """
    Unapplied records are counted in all partitions of the sink's topics.
    """
    ends = {
        "towpath.shop.orders": {"0": 10, "1": 5},
        "towpath.shop.customers": {"0": 9},
    }
    applied = {"towpath.shop.orders": {"0": 7, "1": 5}}
    expected = 3
    actual = lag_records(CACHE, applied, ends)

    assert expected == actual


def test_a_partition_without_progress_counts_in_full():
    """
    A sink that reports nothing about a partition has not caught up with it.
    """
    ends = {
        "towpath.shop.orders": {"0": 4},
        "towpath.shop.orders.backfill.cache": {"0": 2},
    }
    expected = 6
    actual = lag_records(CACHE, {}, ends)

    assert expected == actual


def test_the_backfill_of_a_different_sink_does_not_count_as_lag():
    """
    READ rows that target one sink do not count for any other.
    """
    ends = {"towpath.shop.orders.backfill.search": {"0": 2}}
    expected = 0
    actual = lag_records(CACHE, {}, ends)

    assert expected == actual


def test_records_are_counted_by_kind():
    """
    Tables' topics and outbox topics are distinguished; others are not counted.
    """
    ends = {
        "towpath.shop.orders": {"0": 3, "1": 4},
        "towpath.shop.orders.backfill.x": {"0": 100},
        "outbox.event.order": {"0": 5},
        "outbox.event.order.backfill.x": {"0": 100},
        "towpath.relay-state": {"0": 100},
    }
    expected = (7, 5)
    actual = (table_records(SETTINGS, ends), event_records(SETTINGS, ends))

    assert expected == actual


def test_dead_letter_records_are_summed():
    """
    Dead letters of the relay and of all sinks are summed; other topics do not count.
    """
    ends = {
        "towpath.dead.relay": {"0": 2},
        "towpath.dead.cache": {"0": 3, "1": 4},
        "towpath.shop.orders": {"0": 4},
        "other.dead.relay": {"0": 1},
    }
    expected = 9
    actual = dead_letter_records(SETTINGS, ends)

    assert expected == actual
