"""The plan that the demo makes before it begins."""

import pytest

from towpath.deploy.demo import compare, parts
from towpath.deploy.demo.stage import DemoOptions, make_plan
from towpath.settings import Settings

TABLES = (
    "shop.orders",
    "inventory.products",
    "payments.payments",
    "shipping.shipments",
)


@pytest.mark.parametrize("rate", [1, 20, 50, 400])
@pytest.mark.parametrize("orders", [50_000, 200_000])
def test_enough_rows_change_while_the_snapshot_runs(rate, orders):
    """
    At the planned pace, the snapshot lasts long enough for more than 100 changes.
    """
    decided = make_plan(DemoOptions(rate=rate, orders=orders))
    snapshot_s = orders / decided.max_rows_per_second
    changes = snapshot_s * decided.settle_rate

    assert changes > 100 * 1.4


def test_the_default_snapshot_ends_during_the_default_load():
    """
    With default options, the snapshot ends before the load does.
    """
    options = DemoOptions()
    decided = make_plan(options)
    snapshot_s = options.orders / decided.max_rows_per_second

    assert decided.new_sink_after_s + snapshot_s < options.duration_s


def test_without_orders_the_snapshot_still_ends():
    """
    The snapshot reads the load's orders faster than the load creates them.
    """
    options = DemoOptions(orders=0)

    assert make_plan(options).max_rows_per_second > options.rate


def test_with_few_orders_fewer_changes_are_required():
    """
    Only a tenth of 500 orders must change, because fewer than 100 may still be open.
    """
    expected = 50
    actual = make_plan(DemoOptions(orders=500)).wanted_changes

    assert expected == actual


def platform_with(*sinks):
    """Return the settings of a platform that a demo joins."""
    return Settings.model_validate(
        {
            "version": 1,
            "source": [{"dsn": "x", "tables": [*TABLES]}],
            "kafka": {"bootstrap_servers": "x"},
            "registry": {"url": "x"},
            "sink": sinks,
        }
    )


def sink_of(kind, **more):
    """Describe a sink with all tables of the shop."""
    routes = [{"topic": f"towpath.{table}", "name": table} for table in TABLES]
    return {"name": kind, "kind": kind, "url": f"http://{kind}", "route": routes} | more


def test_the_load_reads_only_sinks_that_show_orders():
    """
    A platform that a demo joins again may have an index with a different name.
    """
    known, other = (
        {"name": name, "kind": "search", "url": f"http://{name}", "route": [route]}
        for name, route in (
            ("search", {"topic": "towpath.shop.orders", "name": "orders"}),
            ("search_orders", {"topic": "towpath.shop.orders", "name": "orders_v2"}),
        )
    )
    settings = platform_with(known, other)

    assert {
        "TOWPATH_LOAD_SEARCH_URL": "http://search",
        "TOWPATH_LOAD_SEARCH_INDEX": "orders",
    } == parts.targets(settings)


def test_the_load_and_the_invariants_skip_sinks_that_they_cannot_read():
    """
    A joined platform may have sinks of other kinds with the same routes.
    """
    lake = sink_of("warehouse", folder="/lake")
    hook = sink_of("webhook", webhook={"secrets": [f"whsec_{'c2VjcmV0' * 4}"]})
    settings = platform_with(lake, sink_of("postgres"), hook)
    variables = parts.targets(settings)

    assert "http://warehouse" == variables["TOWPATH_LOAD_WAREHOUSE_URL"]
    assert ["database", "warehouse"] == [*compare.book_readers(settings, "x")]
