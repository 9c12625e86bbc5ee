"""A sink's lag, compared with its budget."""

from datetime import UTC, datetime, timedelta

import pytest

from towpath.settings import Sink
from towpath.sinks.state.lag import Alarm, Lag, budget_s, lag_of

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TOPIC = "towpath.shop.orders"


def sink(**changed):
    """Describe a cache with one route."""
    return Sink.model_validate(
        {
            "name": "cache",
            "kind": "cache",
            "url": "redis://unused",
            "route": [{"topic": TOPIC, "name": "orders"}],
            **changed,
        }
    )


class Oldest:
    """A reader that gives a topic's records one age, and records the requests."""

    def __init__(self, **ages_s):
        self.requested = []
        self._ages_s = ages_s

    def oldest_ms(self, offsets):
        """Return the earliest time at the offsets."""
        self.requested.append(dict(offsets))
        ages_s = [self._ages_s[topic[-6:]] for topic, _ in offsets]
        at = [(NOW - timedelta(seconds=age_s)).timestamp() for age_s in ages_s]
        return round(min(at) * 1000) if at else None


def test_the_lag_is_the_age_of_the_oldest_unapplied_record():
    """
    Records are counted per partition; other topics do not count.
    """
    oldest = Oldest(orders=7.5)
    ends = {TOPIC: {"0": 10, "1": 5}, "towpath.shop.other": {"0": 99}}
    lag = lag_of(sink(), {TOPIC: {"0": 4, "1": 5}}, ends, oldest, NOW)

    assert (Lag(6, 7.5), [{(TOPIC, 0): 4}]) == (lag, oldest.requested)


def test_a_sink_without_unapplied_records_has_no_lag():
    """
    The lag is zero even if the last record is old, and no request is made.
    """
    oldest = Oldest(orders=86_400.0)
    lag = lag_of(sink(), {TOPIC: {"0": 10}}, {TOPIC: {"0": 10}}, oldest, NOW)

    assert (Lag(0, 0.0), []) == (lag, oldest.requested)


def test_a_partition_without_progress_counts_in_full():
    """
    A new partition, and a new backfill topic, begin at the first record.
    """
    backfill = f"{TOPIC}.backfill.cache"
    ends = {TOPIC: {"0": 3, "1": 2}, backfill: {"0": 4}}
    oldest = Oldest(orders=1.0, **{".cache"[-6:]: 2.0})
    lag = lag_of(sink(), {TOPIC: {"0": 3}}, ends, oldest, NOW)

    assert (Lag(6, 2.0), [{(TOPIC, 1): 0, (backfill, 0): 0}]) == (lag, oldest.requested)


def test_a_record_from_the_future_has_no_lag():
    """
    The source's clock may be ahead of ours; no lag is below zero.
    """
    lag = lag_of(sink(), {}, {TOPIC: {"0": 1}}, Oldest(orders=-5.0), NOW)

    assert Lag(1, 0.0) == lag


@pytest.mark.parametrize(
    ("lags_s", "expected"),
    [
        ([0, 10, 20], []),
        ([20.1], [0]),
        ([20.1, 20.1, 500], [0]),
        ([20.1, 19, 10.1, 20.1], [0]),
        ([20.1, 10, 10.1, 20, 20.1], [0, 1, 4]),
    ],
)
def test_the_lag_alarm_begins_above_twice_the_budget_and_ends_within_it(
    lags_s, expected
):
    """
    D-11: each crossing is logged once; a lag between the two limits changes nothing.
    """
    alarm = Alarm(10.0)

    assert expected == [n for n, lag_s in enumerate(lags_s) if alarm.update(lag_s)]


def test_the_lag_budget_depends_on_the_kind_unless_the_sink_has_its_own():
    """
    D-02 to D-04: a cache may lag 10 seconds, an index a minute, a warehouse an hour.
    """
    search = sink(kind="search", url="http://unused")
    warehouse = sink(kind="warehouse", url="postgresql://unused", folder="lake")
    own = sink(budget_s=1.5)

    assert [10.0, 60.0, 3600.0, 1.5] == [
        budget_s(each) for each in (sink(), search, warehouse, own)
    ]
