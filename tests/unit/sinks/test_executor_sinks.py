"""Sinks that executors build from the plan they get, without the driver's duties."""

import json
import pickle
import shutil

import pytest

from towpath.schemas.failure import UsageError
from towpath.settings import Kafka, Route, SearchOptions, Sink, load
from towpath.sinks.engine import executors
from towpath.sinks.engine.executors import ExecutorSpec, executor_spec
from towpath.sinks.errors import IndexGoneError
from towpath.sinks.targets.cache.sink import CacheSink
from towpath.sinks.targets.search.indexes import Indexes
from towpath.sinks.targets.search.schema import DocumentShape

CONFIGURATION = """
version = 1
[[source]]
dsn = "postgresql://unused/blog"
prefix = "blog"
[kafka]
bootstrap_servers = "unused:9092"
[registry]
url = "http://unused"
[[sink]]
name = "one"
kind = "search"
url = "http://unused:9200"
search.event_schemas = ["schemas"]
[[sink.route]]
topic = "outbox.event.post"
name = "posts"
kind = "aggregate"
state_types = ["PostPublished"]
"""
ROUTE = Route(topic="towpath.shop.orders", name="orders")


def plan(kind: str, **more) -> ExecutorSpec:
    """Return the plan that an executor gets."""
    sink = Sink(name="one", kind=kind, url="redis://unused", route=(ROUTE,), **more)
    return ExecutorSpec(sink, Kafka(bootstrap_servers="unused:9092"), "towpath", 3600)


class Fields:
    """Fields of any route."""

    def shape_of(self, _route):
        """Return a minimal description."""
        return DocumentShape("the table shop.orders", {})

    def refresh(self):
        """Do nothing."""


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch):
    """Replace the reader of shapes, which needs a broker."""
    monkeypatch.setattr(executors, "_relations", lambda *_: None)


def test_a_cache_in_an_executor_does_not_check_for_losses():
    """
    The driver's sink checks for them after all executors have written.
    """
    sent = pickle.loads(pickle.dumps(plan("cache")))  # noqa: S301 - our own
    made = sent.make()

    assert (plan("cache"), True, None) == (
        sent,
        isinstance(made, CacheSink),
        made._losses,
    )


SCHEMA = {
    "type": "record",
    "name": "PostPublished",
    "namespace": "blog",
    "fields": [{"name": "title", "type": "string"}],
}


def test_an_executors_index_has_the_event_schemas_of_the_driver(tmp_path):
    """
    Their folder exists only on the driver's machine, and no package declares them.
    """
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "post_published.v1.avsc").write_text(json.dumps(SCHEMA))
    (tmp_path / "towpath.toml").write_text(CONFIGURATION, encoding="utf-8")
    settings = load(tmp_path / "towpath.toml", {})
    (sink,) = settings.sink
    text = pickle.dumps(executor_spec(settings, sink))
    shutil.rmtree(folder)
    made = pickle.loads(text).make()  # noqa: S301 - our own
    shape = made._indexes._source.shape_of(sink.route[0])
    made.close()

    assert "title" in shape.fields


def test_a_missing_index_is_left_to_the_driver():
    """
    The driver requests its rows again; an executor would only hide the loss.
    """
    made = plan("search").make()
    indexes = Indexes(None, (ROUTE,), Fields(), SearchOptions())
    indexes.may_create = made.creates_indexes
    made.close()

    with pytest.raises(IndexGoneError, match="orders has no index"):
        indexes.ensure("orders")


def test_a_kind_without_executor_support_is_not_built(tmp_path):
    """
    Normally, such a configuration is refused earlier.
    """
    with pytest.raises(UsageError, match="only the driver"):
        plan("warehouse", folder=tmp_path).make()
