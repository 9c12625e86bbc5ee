"""A sink is filled once, even if the request is interrupted."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path

import psycopg
import pytest

from towpath.deploy.errors import SignalRefusedError
from towpath.deploy.sinks import filling, lifecycle
from towpath.deploy.snapshots import signals
from towpath.schemas.failure import UnavailableError, UsageError
from towpath.settings import Route, Settings
from towpath.sinks.errors import SinkUnfitError
from towpath.sinks.state import incomplete


@pytest.fixture
def settings(tmp_path):
    """Make settings with a cache of two tables, one of which has two routes."""
    routes = [
        {"topic": "towpath.shop.lines", "name": "lines"},
        {"topic": "towpath.shop.customers", "name": "customers"},
        {"topic": "towpath.shop.customers", "name": "names", "include": ["id"]},
    ]
    return Settings.model_validate(
        {
            "version": 1,
            "state_folder": tmp_path,
            "source": [{"dsn": "x", "tables": ["shop.customers", "shop.lines"]}],
            "kafka": {"bootstrap_servers": "x"},
            "registry": {"url": "x"},
            "sink": [{"name": "cache", "kind": "cache", "url": "x", "route": routes}],
        }
    )


class Relay:
    """Keeps signals in a list; the source fails ``fails`` times after accepting one."""

    def __init__(self, monkeypatch, fails=0):
        self.requested = []
        self._fails = fails
        monkeypatch.setattr(signals, "request_snapshot", self.request_snapshot)
        monkeypatch.setattr(signals, "state", self.state)
        monkeypatch.setattr(signals, "progress", lambda *_: [])

    def request_snapshot(
        self, _dsn, collections, *, target, signal_id, more_fields, **_
    ):
        """Accept a signal."""
        self.requested.append((signal_id, list(collections), target, more_fields))
        if self._fails:
            self._fails -= 1
            message = "gone"
            raise UnavailableError(message)

    def state(self, _dsn, signal_id):
        """Report every request as completed."""
        known = any(signal_id == requested[0] for requested in self.requested)
        return ("completed", {}) if known else None


class Clock:
    """A clock that does not advance; a wait fails the test."""

    def monotonic_s(self):
        """Return a fixed time."""
        return 0.0

    def wait(self, _delay_s):
        """Fail the test."""
        pytest.fail("waited")


def fill(settings, *, has_sweep=True):
    """Fill the cache, as the command does."""
    sink = settings.sink[0]
    collections = filling.collections_of(settings, sink)
    begun, is_old = filling.begin_fill(settings, sink, collections, has_sweep=has_sweep)
    filling.carry_out_fill("x", sink, begun, Clock(), lambda _: None)
    return begun, is_old


def test_a_table_is_read_once_for_all_its_routes(settings):
    """One route may be filled alone."""
    sink = settings.sink[0]

    assert ["shop.lines", "shop.customers"] == filling.collections_of(settings, sink)
    assert ["shop.customers"] == filling.collections_of(settings, sink, "names")
    with pytest.raises(UsageError, match=r"no route name .*: lines, customers, names"):
        filling.collections_of(settings, sink, "name")


def test_a_requested_fill_is_not_requested_again(settings, monkeypatch):
    """
    The source accepted the signal, but the response was lost; the id finds the signal.
    """
    relay = Relay(monkeypatch, fails=1)
    with pytest.raises(UnavailableError):
        fill(settings)
    begun, is_old = fill(settings)

    assert is_old
    assert [
        (begun.signal_id, ["shop.lines", "shop.customers"], "cache", {"sweep": True})
    ] == relay.requested


def test_each_fill_has_an_id_of_its_own(settings, monkeypatch):
    """
    A fill that has ended is not resumed.
    """
    Relay(monkeypatch)
    first, _ = fill(settings)
    filling.end_fill(settings, settings.sink[0], first, is_applied=True)
    second, is_old = fill(settings)

    assert not is_old
    assert first.signal_id != second.signal_id


def test_two_fills_do_not_mix(settings, monkeypatch):
    """The first one must end before a new one begins."""
    Relay(monkeypatch)
    fill(settings, has_sweep=False)

    with pytest.raises(UsageError, match="cache is being filled from"):
        fill(settings)


@pytest.fixture
def missing_rows(settings):
    """Return a function that lists the routes with missing rows."""
    return lambda: incomplete.routes(settings.state_folder, "cache")


def test_a_refilled_route_is_incomplete_until_the_fill_has_ended(
    settings, monkeypatch, missing_rows
):
    """
    All routes of the table are listed before the signal, so a crash leaves them listed.
    """
    Relay(monkeypatch)
    sink = settings.sink[0]
    seen = []
    for is_applied in (False, True):
        begun, _ = filling.begin_fill(
            settings, sink, ["shop.customers"], has_sweep=True
        )
        filling.begin_fill(settings, sink, ["shop.customers"], has_sweep=True)
        seen.append(missing_rows())
        filling.end_fill(settings, sink, begun, is_applied=is_applied)
        seen.append(missing_rows())

    assert [("customers", "names"), ()] * 2 == seen


def test_a_route_without_a_view_does_not_prevent_the_refill_of_a_different_route(
    settings, missing_rows
):
    """
    Only aggregates need a view for their rows, and only if those rows are to be read.
    """
    sink = settings.sink[0]
    route = {"topic": "outbox.event.order", "name": "orders", "kind": "aggregate"}
    events = Route.model_validate({**route, "state_types": ["*"]})
    mixed = sink.model_copy(update={"route": (*sink.route, events)})
    collections = filling.collections_of(settings, mixed, "lines")
    begun, _ = filling.begin_fill(settings, mixed, collections, has_sweep=True)
    seen = missing_rows()
    filling.end_fill(settings, mixed, begun, is_applied=True)

    assert ("lines",) == seen
    with pytest.raises(UsageError, match=r"no view .* provides outbox\.event\.order"):
        filling.collections_of(settings, mixed)


def test_a_new_sink_has_no_stale_rows(settings, monkeypatch, missing_rows):
    """
    Its rows are absent, not stale.
    """
    Relay(monkeypatch)
    fill(settings, has_sweep=False)

    assert () == missing_rows()


def test_a_fill_repairs_earlier_losses_only(settings, monkeypatch, missing_rows):
    """
    Rows lost while the snapshot ran may have been filled before the loss.
    """
    Relay(monkeypatch)
    folder, sink = settings.state_folder, settings.sink[0]
    for route in ("lines", "customers"):
        incomplete.begin(folder, "cache", route, "repair-1")
    begun, _ = fill(settings)
    incomplete.begin(folder, "cache", "lines", "repair-2")
    begun, is_old = fill(settings)
    filling.end_fill(settings, sink, begun, is_applied=True)

    assert (True, ("lines",)) == (is_old, missing_rows())


def test_a_failed_fill_repairs_nothing(settings, monkeypatch, missing_rows):
    """
    The routes with an earlier loss are still listed.
    """
    Relay(monkeypatch)
    incomplete.begin(settings.state_folder, "cache", "lines", "repair-1")
    begun, _ = fill(settings)
    filling.end_fill(settings, settings.sink[0], begun, is_applied=False)

    assert ("lines",) == missing_rows()


def test_all_collections_without_permission_are_listed(settings, monkeypatch):
    """
    One missing permission does not hide the next.
    """

    def describe(_self, _connection, collection):
        message = f"permission denied for {collection}"
        raise psycopg.errors.InsufficientPrivilege(message)

    monkeypatch.setattr(filling, "connect", lambda _: nullcontext())
    monkeypatch.setattr(filling.CollectionCatalog, "describe", describe)
    with pytest.raises(SinkUnfitError) as refused:
        filling.check_fillable(settings, "cache", ["shop.a", "shop.b"])

    assert 2 == str(refused.value).count("cannot be read")


@pytest.fixture
def add(settings, monkeypatch):
    """Provide a function that adds the sink; the test fails if the sink is declared."""

    def declare(*arguments):
        arguments[-1](settings, settings.sink[0])
        pytest.fail("the sink is declared")

    monkeypatch.setattr(lifecycle, "load", lambda *_: settings)
    monkeypatch.setattr(lifecycle, "Topics", lambda _: None)
    monkeypatch.setattr(lifecycle.declare, "declare_sink", declare)
    return partial(lifecycle.add_sink, Path("towpath.toml"), {}, "", None)


@pytest.mark.parametrize("known", [("completed", {}), (None, None)])
def test_the_id_of_an_earlier_signal_cannot_fill_a_new_sink(known, add, monkeypatch):
    """
    Its answer would count as the fill's, and the sink would be ready without rows.
    """
    monkeypatch.setattr(signals, "state", lambda *_: known)
    with pytest.raises(SignalRefusedError, match="signal fill-1 already exists"):
        add(signal_id="fill-1")


@pytest.mark.parametrize("signal_id", ["", "x" * 65])
def test_an_impossible_signal_id_is_refused(signal_id, add):
    """
    The row that the command waits for could not be inserted.
    """
    with pytest.raises(UsageError, match="must have 1 to 64 characters"):
        add(signal_id=signal_id)
