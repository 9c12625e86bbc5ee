"""Sinks as executors make them: of what they are sent, without the driver's part."""

import pickle

import pytest

from towpath.schemas.failure import UsageError
from towpath.settings import Kafka, Route, SearchOptions, Sink
from towpath.sinks import executor
from towpath.sinks.cache.sink import CacheSink
from towpath.sinks.errors import IndexGoneError
from towpath.sinks.executor import Told
from towpath.sinks.search.fields import Described
from towpath.sinks.search.indexes import Indexes

ROUTE = Route(topic="towpath.shop.orders", name="orders")


def told(kind: str, **more) -> Told:
    """Say what an executor is sent."""
    sink = Sink(name="one", kind=kind, url="redis://unused", route=(ROUTE,), **more)
    return Told(sink, Kafka(bootstrap_servers="unused:9092"), "towpath", 3600)


class Fields:
    """Fields of any route."""

    def described(self, _route):
        """Describe nothing much."""
        return Described("the table shop.orders", {})

    def refresh(self):
        """All is known."""


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch):
    """Read no shapes."""
    monkeypatch.setattr(executor, "_relations", lambda *_: None)


def test_what_is_sent_makes_a_cache_that_looks_for_no_losses():
    """
    The driver's own sink does, behind all that executors write.
    """
    sent = pickle.loads(pickle.dumps(told("cache")))  # noqa: S301 - our own
    made = sent.make()

    assert (told("cache"), True, None) == (
        sent,
        isinstance(made, CacheSink),
        made._losses,
    )


def test_an_index_that_is_not_there_is_left_to_the_driver():
    """
    It asks for the rows that went with it; an executor would only hide the loss.
    """
    made = told("search").make()
    indexes = Indexes(None, (ROUTE,), Fields(), SearchOptions())
    indexes.may_make = made._indexes.may_make
    made.close()

    with pytest.raises(IndexGoneError, match="orders has no index"):
        indexes.ensure("orders")


def test_a_kind_that_executors_cannot_write_is_not_made(tmp_path):
    """
    The configuration refuses it before.
    """
    with pytest.raises(UsageError, match="from the driver"):
        told("warehouse", folder=tmp_path).make()
