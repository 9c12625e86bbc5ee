"""The OpenLineage names of routes' targets, and the origins of their columns."""

from threading import Event, Thread

import pytest

from support.waiting import TIMEOUT_S
from towpath.schemas.lineage import DatasetName, Job, JobDatasets
from towpath.settings import Sink
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.changes.routing import Routing
from towpath.sinks.engine.lineage import SinkRuns, _routed, target_of

SHAPE = RelationShape(
    "shop",
    "orders",
    (
        Column("id", "bigint", nullable=False),
        Column("name", "text"),
        Column("email", "text"),
    ),
    ("id",),
    "1",
)
TOPIC = DatasetName("kafka://broker:9092", "towpath.shop.orders")


def sink(kind: str, url: str, **more: object) -> Sink:
    """Describe a sink with one route."""
    route = {"topic": TOPIC.name, "name": "shop.orders", **more.pop("route", {})}
    return Sink.model_validate(
        {"name": "it", "kind": kind, "url": url, "route": [route], **more}
    )


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (
            sink("cache", "redis://user:secret@cache:6379/0"),
            ("redis://cache:6379", "towpath:shop.orders"),
        ),
        (
            sink("search", "https://user:secret@index:9200", route={"name": "orders"}),
            ("opensearch://index:9200", "orders"),
        ),
        (
            sink("postgres", "postgresql://user:secret@models:6543/read"),
            ("postgres://models:6543", "read.shop.orders"),
        ),
        (
            sink("warehouse", "postgresql://catalog/lake", folder="/data/lake"),
            ("file:///data/lake", "shop.orders"),
        ),
    ],
    ids=["cache", "search", "postgres", "warehouse"],
)
def test_a_dataset_is_named_by_its_kind_without_credentials(one: Sink, expected):
    """
    Two processes with different credentials give the dataset the same name.
    """
    assert expected == target_of(one, one.route[0], "towpath")


def test_columns_have_the_origins_that_decide_their_values():
    """
    Renames and transforms are followed; excluded columns and constants have no origins.
    """
    cache = sink(
        "cache",
        "redis://cache",
        route={
            "exclude": ["email"],
            "rename": {"name": "title"},
            "constants": {"region": "eu"},
            "transforms": [{"template": "{name} <{email}>", "to": "address"}],
        },
    )
    found = _routed(DatasetName("a", "b"), SHAPE, TOPIC, Routing(cache.route[0]))

    assert {
        "id": [(TOPIC, "id")],
        "title": [(TOPIC, "name")],
        "address": [(TOPIC, "email"), (TOPIC, "name")],
    } == found.origins
    assert ["id", "title", "address", "region"] == [each.name for each in found.fields]


def test_two_threads_of_a_sink_begin_one_run():
    """
    The query and its first batch begin the run at the same time; the run ends once.
    """
    begun, may_return, events = Event(), Event(), []

    class Reporter:
        """Holds the first start until the test lets it return."""

        def start(self, job):
            """Begin a run, which is this reporter."""
            events.append(job.name)
            begun.set()
            may_return.wait(TIMEOUT_S)
            return self

        def end(self, failure=None):
            """End the run."""
            events.append(failure)

    runs = SinkRuns(Reporter(), Job("it", "SINK", JobDatasets))
    threads = [Thread(target=runs.begin, daemon=True) for _ in range(2)]
    threads[0].start()
    assert begun.wait(TIMEOUT_S)
    threads[1].start()
    threads[1].join(0.1)
    may_return.set()
    for thread in threads:
        thread.join(TIMEOUT_S)
    runs.end()

    assert ["it", None] == events
