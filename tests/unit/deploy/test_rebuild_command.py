"""``towpath sink rebuild`` replaces an index only with a complete one."""

from types import SimpleNamespace

import pytest

from support.published import OneDriver
from towpath.deploy.cli import sink_lifecycle as command
from towpath.deploy.sinks import lifecycle
from towpath.deploy.snapshots.signals import SignalAnswer
from towpath.schemas.schema_files import EventSchemaError
from towpath.settings import Settings
from towpath.sinks.errors import NothingToRebuildError
from towpath.sinks.state.progress import Progress
from towpath.sinks.targets.search import rebuild as search_rebuild
from towpath.sinks.targets.search import schema as search_schema
from towpath.sinks.targets.search.rebuild import RebuildStart


def settings(kind: str = "search") -> Settings:
    """Make settings with one sink that has two routes."""
    routes = [
        {"topic": f"towpath.shop.{name}", "name": name} for name in ("orders", "lines")
    ]
    sink = {"name": "it", "kind": kind, "url": "x", "route": routes}
    return Settings.model_validate(
        {
            "version": 1,
            "source": [{"dsn": "x", "tables": ["shop.orders", "shop.lines"]}],
            "kafka": {"bootstrap_servers": "x"},
            "registry": {"url": "x"},
            "sink": [sink],
        }
    )


class Rebuild:
    """Records each operation with its route."""

    def __init__(self):
        self.done = []
        self.is_resumed = False

    def begin(self, route, snapshot):
        """Begin, or resume."""
        self.done.append(("begin", route.name))
        return RebuildStart(f"{route.name}-2", snapshot, self.is_resumed)

    def swap(self, route):
        """Swap at once."""
        self.done.append(("swap", route.name))
        return SimpleNamespace(old="1", new="2", before=3, after=4)

    def retire(self, route, _clock):
        """Release the replaced indexes at once."""
        self.done.append(("retire", route.name))

    def abort(self, route):
        """Abort at once."""
        self.done.append(("abort", route.name))

    def close(self):
        """Close nothing."""


class Bench:
    """The command's environment, with snapshots and dead letters set by the test."""

    def __init__(self, folder):
        self.status = "completed"
        self.new_dead_letters = 0
        self.requested = []
        self.rebuild = Rebuild()
        self.kind = "search"
        self.driver = OneDriver()
        self.closed = []
        self._folder = folder

    def settings(self, *_):
        """Return the configuration."""
        return settings(self.kind).model_copy(update={"state_folder": self._folder})

    def fill(self, _dsn, sink, requested, *_):
        """Complete a snapshot during which the sink may write dead letters."""
        self.requested.append((sink.name, requested.collections))
        self.driver.set(Progress(sink.name, dead_letters=self.new_dead_letters))
        return SignalAnswer(self.status, {})

    def run(self, route="orders"):
        """Run the command; return its exit code and the recorded operations."""
        code = command.rebuild("it", route=route)
        return code, [operation for operation, _ in self.rebuild.done]


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """Provide the command's environment, without servers."""
    made = Bench(tmp_path)
    announced = SimpleNamespace(close=lambda: made.closed.append("relations"))
    monkeypatch.setattr(command, "load", made.settings)
    monkeypatch.setattr(lifecycle, "KafkaRelations", lambda *_: announced)
    monkeypatch.setattr(lifecycle, "ProgressReader", lambda *_: made.driver)
    monkeypatch.setattr(lifecycle.filling, "carry_out_fill", made.fill)
    monkeypatch.setattr(lifecycle.declare, "wait_running", lambda *_: None)
    monkeypatch.setattr(lifecycle.declare, "sink_ends", lambda *_: {})
    monkeypatch.setattr(lifecycle.declare, "wait_applied", lambda *_: None)
    monkeypatch.setattr(search_rebuild, "Rebuild", lambda *_: made.rebuild)
    return made


def test_a_filled_index_replaces_the_old_one(bench):
    """
    The snapshot reads only the route's table, and only for this sink.
    """
    assert (0, ["retire", "begin", "swap", "retire"]) == bench.run()
    assert [("it", ("shop.orders",))] == bench.requested


def test_unusable_schemas_leave_no_reader_open(bench, monkeypatch):
    """
    The console keeps running after the failure, so the reader's connections would leak.
    """

    def fail(*_):
        message = "no schema"
        raise EventSchemaError(message)

    monkeypatch.setattr(search_schema, "event_schemas", fail)
    with pytest.raises(EventSchemaError):
        bench.run()

    assert ["relations"] == bench.closed


@pytest.mark.parametrize("status", ["failed", "rejected"])
def test_a_failed_snapshot_replaces_nothing(bench, status):
    """
    The new index is deleted, and the old one is kept.
    """
    bench.status = status

    assert (1, ["retire", "begin", "abort"]) == bench.run()


def test_dead_letters_written_during_the_snapshot_prevent_the_replacement(bench):
    """
    The new index may lack their records, so it replaces the old one only after a check.
    """
    bench.new_dead_letters = 1

    assert (1, ["retire", "begin"]) == bench.run()


def test_a_resumed_rebuild_reports_dead_letters_from_before_its_interruption(
    bench, monkeypatch
):
    """
    The new index may lack them; after the report, a second run replaces the old one.
    """

    def interrupt(*_):
        bench.driver.set(Progress("it", dead_letters=2))
        raise KeyboardInterrupt

    bench.driver.set(Progress("it", dead_letters=1))
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle.filling, "carry_out_fill", interrupt)
        with pytest.raises(KeyboardInterrupt):
            bench.run()
    bench.new_dead_letters, bench.rebuild.is_resumed = 2, True
    bench.rebuild.done.clear()
    resumed = bench.run()
    bench.rebuild.done.clear()

    assert (1, ["retire", "begin"]) == resumed
    assert (0, ["retire", "begin", "swap", "retire"]) == bench.run()


def test_a_resumed_rebuild_after_lost_progress_does_not_replace_at_once(
    bench, monkeypatch
):
    """
    The sink counts from zero again, so the new count may be lower than before.
    """
    bench.driver.set(Progress("it", dead_letters=100))
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle.filling, "carry_out_fill", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bench.run()
    bench.driver.set(Progress("it", dead_letters=7))
    bench.new_dead_letters, bench.rebuild.is_resumed = 7, True
    bench.rebuild.done.clear()

    assert (1, ["retire", "begin"]) == bench.run()


def test_a_new_rebuild_ignores_the_dead_letters_of_an_earlier_one(bench):
    """
    The index of an interrupted rebuild may have been deleted.
    """
    bench.new_dead_letters = 1
    bench.run()
    bench.new_dead_letters = 2
    bench.driver.set(Progress("it", dead_letters=2))
    bench.rebuild.done.clear()

    assert (0, ["retire", "begin", "swap", "retire"]) == bench.run()


def test_only_the_named_route_is_rebuilt(bench):
    """
    Without a name, every route is rebuilt, one after the other.
    """
    bench.run("lines")
    named, bench.rebuild.done = bench.rebuild.done, []
    bench.run(None)

    assert {"lines"} == {route for _, route in named}
    assert ["orders"] * 4 + ["lines"] * 4 == [route for _, route in bench.rebuild.done]


def test_only_known_routes_of_a_search_sink_can_be_rebuilt(bench):
    """
    The message lists the routes that can be named.
    """
    with pytest.raises(NothingToRebuildError, match="no route order, only orders"):
        bench.run("order")
    bench.kind = "cache"
    with pytest.raises(NothingToRebuildError, match="it is a cache"):
        bench.run(None)

    assert [] == bench.rebuild.done
