"""
The driver process of the serving sinks: its targets equal the fold of the records.
"""

import pytest

from support.driver_process import PATIENCE_S, Feed, Place, driver
from support.published import wait_running
from support.waiting import CLOCK, until
from towpath.sinks.kafka.client import Topics
from towpath.sinks.state import declare
from towpath.sinks.state.progress import State

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(180)]


@pytest.fixture
def place(stack, unique, tmp_path):
    """Provide a place for topics and sinks, with both serving targets running."""
    stack.up("kafka", "redis", "opensearch")
    return Place(stack, unique, tmp_path)


def test_a_dead_target_and_a_new_sink_do_not_affect_other_sinks(place, unused_port):
    """
    The dead target's sink reports the failure; another continues; a new one starts.
    """
    place.write_config(
        place.sink("cache", "cache", place.stack.redis_url),
        place.sink("search", "search", f"http://127.0.0.1:{unused_port}"),
    )
    feed = Feed(place)
    feed.work(200, keys=50, seed=4)
    with driver(place):
        place.wait_applied("cache")
        until(lambda: place.progress("search").state is State.FAILED, "the sink failed")
        before = dict(feed.rows)

        block = place.sink("search2", "search", place.stack.opensearch_url)
        topics = Topics(place.settings.kafka)
        declare.declare_sink(place.config, block, {}, topics, CLOCK)
        wait_running(place.settings, "search2", PATIENCE_S)
        feed.backfill("search2", keys=before)
        for key in range(50, 60):
            feed.put(key, "c", {"status": "placed", "note": "new"})
        feed.work(1, keys=1, seed=5)
        place.wait_applied("cache")
        place.wait_applied("search2")
        error = place.progress("search").error
        cache = place.progress("cache")
        lags = [
            declare.records_between(
                place.progress(name).applied,
                declare.sink_ends(place.settings, name, topics),
            )
            for name in ("cache", "search2")
        ]

    rows = feed.rows
    streamed = {k: row for k, row in rows.items() if row[-1] != "read"}
    assert "does not answer" in error
    assert rows == place.indexed("search2")
    assert {**before, **streamed} == place.cached()
    assert ({place.topic}, 0) == (set(cache.applied), cache.dead_letters)
    assert [0, 0] == lags


@pytest.fixture
def unused_port():
    """Provide a port on which no process listens."""
    import socket  # noqa: PLC0415 - only here

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
