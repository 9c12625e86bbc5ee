"""How far sinks are behind, from their offsets and the broker's."""

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


def test_lag_is_what_lies_between_applied_and_end():
    """
    Records beyond the applied offsets count, over all partitions of the sink's topics.
    """
    ends = {
        "towpath.shop.orders": {"0": 10, "1": 5},
        "towpath.shop.customers": {"0": 9},
    }
    applied = {"towpath.shop.orders": {"0": 7, "1": 5}}
    expected = 3
    actual = lag_records(CACHE, applied, ends)

    assert expected == actual


def test_a_partition_that_the_sink_does_not_name_counts_in_full():
    """
    A sink that has said nothing about a partition has not caught up with it.
    """
    ends = {
        "towpath.shop.orders": {"0": 4},
        "towpath.shop.orders.backfill.cache": {"0": 2},
    }
    expected = 6
    actual = lag_records(CACHE, {}, ends)

    assert expected == actual


def test_the_backfill_of_another_sink_is_no_lag():
    """
    READ rows that are meant for one sink do not count for another.
    """
    ends = {"towpath.shop.orders.backfill.search": {"0": 2}}
    expected = 0
    actual = lag_records(CACHE, {}, ends)

    assert expected == actual


def test_records_are_counted_by_kind():
    """
    Tables' topics and outbox topics are distinguished; others count nowhere.
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


def test_dead_letter_records_of_all_count():
    """
    Dead letters of the relay and each sink are one sum; other topics do not count.
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
