"""``towpath sink rebuild`` replaces an index only by one that has everything."""

import itertools
from types import SimpleNamespace

import pytest

from towpath.deploy.cli import sink_lifecycle as command
from towpath.deploy.snapshots.signals import SignalAnswer
from towpath.settings import Settings
from towpath.sinks.errors import NothingToRebuildError


def settings(kind: str = "search") -> Settings:
    """Make settings with one sink of two routes."""
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
    """Notes what is done to which route."""

    def __init__(self):
        self.done = []

    def begin(self, route, snapshot):
        """Begin as if for the first time."""
        self.done.append(("begin", route.name))
        return SimpleNamespace(new=f"{route.name}-2", snapshot=snapshot, is_resumed=0)

    def swap(self, route):
        """Swap at once."""
        self.done.append(("swap", route.name))
        return SimpleNamespace(old="1", new="2", before=3, after=4)

    def retire(self, route, _clock):
        """Let go of replaced indexes at once."""
        self.done.append(("retire", route.name))

    def give_up(self, route):
        """Give up at once."""
        self.done.append(("give up", route.name))


@pytest.fixture
def bench(monkeypatch):
    """Return a bench whose snapshot and dead letters a test decides."""
    lent = SimpleNamespace(status="completed", aside=itertools.repeat(0), asked=[])

    def carry_out(_dsn, sink, asked, *_):
        lent.asked.append((sink.name, asked.collections))
        return SignalAnswer(lent.status, {})

    monkeypatch.setattr(command.filling, "carry_out_fill", carry_out)
    monkeypatch.setattr(command.declare, "sink_ends", lambda *_: {})
    monkeypatch.setattr(command.declare, "wait_applied", lambda *_: None)
    monkeypatch.setattr(command, "_dead_letters", lambda _: next(lent.aside))
    return lent


def rebuilt(settings):
    """Rebuild the first route; return the exit code and what was done."""
    sink, rebuild = settings.sink[0], Rebuild()
    work = command._Work(settings, sink, rebuild, None)
    code = command._rebuilt(work, sink.route[0])
    return code, [what for what, _ in rebuild.done]


def test_a_filled_index_takes_the_old_ones_place(bench):
    """
    The snapshot is of the route's own table, for this sink alone.
    """
    assert (0, ["retire", "begin", "swap", "retire"]) == rebuilt(settings())
    assert [("it", ("shop.orders",))] == bench.asked


@pytest.mark.parametrize("status", ["failed", "rejected"])
def test_a_failed_snapshot_replaces_nothing(bench, status):
    """
    The new index goes, the old one stays.
    """
    bench.status = status

    assert (1, ["retire", "begin", "give up"]) == rebuilt(settings())


def test_dead_letters_written_meanwhile_replace_nothing(bench):
    """
    The new index may lack them: it stays until the operator has looked.
    """
    bench.aside = iter([5, 6])

    assert (1, ["retire", "begin"]) == rebuilt(settings())


def test_only_known_routes_of_a_search_sink_are_rebuilt():
    """
    The message lists the routes that can be named.
    """
    search, cache = settings().sink[0], settings("cache").sink[0]
    chosen = [route.name for route in command._chosen(search, "lines")]
    with pytest.raises(NothingToRebuildError, match="no route order, only orders"):
        command._chosen(search, "order")
    with pytest.raises(NothingToRebuildError, match="it is a cache"):
        command._chosen(cache, None)

    assert ["lines"] == chosen
    assert 2 == len(command._chosen(search, None))
