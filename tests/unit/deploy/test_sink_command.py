"""The tables read to fill a new sink, and the report after the fill."""

import pytest
from cyclopts import ValidationError

from support.published import OneDriver
from towpath.cli.app import app
from towpath.deploy.cli.sink_lifecycle import add
from towpath.deploy.sinks import lifecycle
from towpath.deploy.sinks.filling import collections_of
from towpath.schemas.failure import UsageError
from towpath.settings import Settings
from towpath.sinks.state.progress import Progress


def settings(view: str, *names: str) -> Settings:
    """
    Make settings with a search sink that reads a table and an aggregate.

    Args:
        view: The aggregate type for which there are views.
        names: The views' names; by default, there is one without a name.
    """
    order = {"topic": "events.order", "name": "orders", "state_types": ["OrderPlaced"]}
    routes = [
        {"topic": "towpath.shop.customers", "name": "customers"},
        order | {"kind": "aggregate"},
    ]
    sink = {"name": "search", "kind": "search", "url": "x", "route": routes}
    views = [
        {"aggregate_type": view, "view": "shop.documents", "name": name}
        for name in names or ("",)
    ]
    outbox = {"topic": "events.{aggregate_type}", "view": views}
    return Settings.model_validate(
        {
            "version": 1,
            "source": [{"dsn": "x", "tables": ["shop.customers", "shop.lines"]}],
            "kafka": {"bootstrap_servers": "x"},
            "registry": {"url": "x"},
            "relay": {"outbox": outbox},
            "sink": [sink],
        }
    )


def test_a_sink_is_filled_from_its_tables_and_its_views():
    """
    Tables without a route are not requested; without a sink, all tables are.
    """
    chosen = settings("order")

    assert ["shop.customers", "outbox.order"] == collections_of(chosen, chosen.sink[0])
    assert ("shop.customers", "shop.lines", "outbox.order") == chosen.collections


def test_an_aggregate_without_a_view_cannot_be_filled():
    """
    The error names the topic and the missing view.
    """
    chosen = settings("invoice")

    with pytest.raises(
        UsageError, match=r"no view in relay.outbox.view provides events"
    ):
        collections_of(chosen, chosen.sink[0])


def test_an_additional_view_alone_does_not_fill_an_aggregate():
    """
    It provides no state; together with a view that does, one request covers both.
    """
    both, alone = settings("order", "totals", ""), settings("order", "totals")

    assert ["outbox.order"] == collections_of(both, both.sink[0], "orders")
    with pytest.raises(
        UsageError, match=r"no view in relay.outbox.view provides events"
    ):
        collections_of(alone, alone.sink[0])


class Report:
    """Keeps the warnings about the remaining work."""

    def __init__(self):
        self.warned = []

    def warn(self, line):
        """Keep a warning."""
        self.warned.append(line)


def test_parked_keys_are_reported_with_a_command_that_lists_them(monkeypatch):
    """
    The printed command can be run without changes.
    """
    chosen = settings("order")
    driver = OneDriver(Progress("search", parked=3))
    report = Report()
    monkeypatch.setattr(lifecycle, "ProgressReader", lambda *_: driver)
    is_good = lifecycle._nothing_is_parked(chosen, chosen.sink[0], report)
    [found] = report.warned
    args = found.partition(": towpath ")[2].split()
    command, bound, _ = app.parse_args(args, print_error=False, exit_on_error=False)

    assert (False, "3 keys of search are parked") == (is_good, found.partition(";")[0])
    assert ("list_dead_letters", {"sink": "search"}) == (
        command.__name__,
        bound.arguments,
    )


def test_a_block_that_is_not_text_is_refused(tmp_path):
    """
    The error names the file.
    """
    file = tmp_path / "block.toml"
    file.write_bytes("[[sink]] # f\u00fcr".encode("latin-1"))
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        add(file)


@pytest.mark.parametrize("args", [("add", "block.toml"), ("refill", "cache")])
@pytest.mark.parametrize("speed", ["0", "-5", "3000000000"])
def test_a_speed_that_the_relay_refuses_is_refused_before_the_sink_is_declared(
    args, speed
):
    """
    Otherwise the sink would be declared but would lack its rows.
    """
    command = ["sink", *args, "--max-rows-per-second", speed]

    with pytest.raises(ValidationError, match="max-rows-per-second"):
        app.parse_args(command, print_error=False, exit_on_error=False)
