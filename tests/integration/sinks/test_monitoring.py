"""
A real Prometheus scrapes relay, driver, consumer and service: rules and dashboards.
"""

import json
import urllib.request
from itertools import count
from urllib.parse import urlsplit

import pytest
import redis
from prometheus_client import CollectorRegistry, start_http_server
from psycopg.conninfo import conninfo_to_dict

from support import databases, waiting
from support.driver_process import metrics_port
from support.exposition import mistakes
from support.inbox_place import event
from support.orders_service import orders_service
from support.prometheus import MONITORING, prometheus
from support.sink_place import SinkPlace
from towpath.cli import app
from towpath.inbox import Inbox
from towpath.inbox.metrics import InboxMetrics
from towpath.schemas.clock import Deadline

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

# For engines that start on a busy machine.
PATIENCE_S = 400.0
# Queries that rightly return nothing on this healthy platform.
EMPTY = {
    # No row was refused, altered or dropped.
    "towpath_relay_dead_letters_total",
    "towpath_relay_altered_values_total",
    "towpath_relay_skipped_changes_total",
    "count(towpath_relay_dropped_table_info)",
    # The relay is consuming the slot, and the server has no max_slot_wal_keep_size.
    "towpath_relay_slot_inactive_seconds",
    "towpath_relay_slot_safe_wal_bytes",
    # No request failed.
    (
        "sum by (job, route, status)"
        ' (rate(towpath_service_request_seconds_count{status=~"5.."}[5m]))'
    ),
    # A small table is read within a second.
    "towpath_snapshot_duration_seconds",
}
SNAPSHOT = (
    "insert into towpath.signal (id, type, data)"
    """ values ('s', 'execute-snapshot', '{"data-collections": ["shop.lines"]}')"""
)
ADD = "insert into shop.lines values (%s, 0, 'x', 's')"


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide a source with its relay, and a cache sink."""
    stack.up("kafka", "redis")
    found = SinkPlace(stack, database, unique, tmp_path)
    yield found
    found.close()


@pytest.fixture
def orders(stack, database, tmp_path):
    """Provide the port of a service that has received requests."""
    folder = tmp_path / "orders"
    folder.mkdir()
    name = f"{conninfo_to_dict(database)['dbname']}_orders"
    with (
        databases.fresh_database(stack, name) as dsn,
        orders_service(dsn, folder) as service,
    ):
        service.post("/customers", {"name": "Ada", "email": "a@b"})
        yield urlsplit(service.url).port


@pytest.fixture
def consumer_port():
    """Provide the port of an application whose consumer has applied events."""
    registry = CollectorRegistry()
    observer = InboxMetrics(registry).of(Inbox("orders"))
    observer.parked_events(0)
    observer.lag("t", 0, 0)
    for report in (observer.applied, observer.skipped):
        report(event())
    for report in (observer.retried, observer.parked):
        report(event(), "a reason")
    observer.handled(event(), 0.01)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def queries() -> set[str]:
    """List the queries of all dashboards."""
    files = (MONITORING / "dashboards").glob("*.json")
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    panels = [panel for document in documents for panel in document["panels"]]
    return {target["expr"] for panel in panels for target in panel["targets"]}


def driver_port(rig) -> int:
    """Wait until the driver has logged its metrics port; return the port."""
    log = rig.folder / "driver.log"
    waiting.until(
        lambda: metrics_port(log), "the driver logs its port", timeout_s=PATIENCE_S
    )
    return metrics_port(log)


def read_page(port: int) -> str:
    """Read a page of metrics."""
    address = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(address, timeout=10) as response:
        return response.read().decode()


def verified(rig, *options) -> int:
    """Verify the sink; return the exit code."""
    return app.run(["verify", "plain", *options, "--config", str(rig.config)])


def alter_a_row(rig):
    """Alter a row in the cache, bypassing the sink, and have it verified."""
    waiting.until(
        lambda: verified(rig) == 0, "the sink is filled", timeout_s=PATIENCE_S
    )
    with redis.Redis.from_url(rig.url) as cache:
        cache.hset(f"{rig.prefix}:plain:7:1", "note", "altered by hand")
    assert verified(rig) == 1
    # A sample may miss the altered row.
    assert verified(rig, "--sample", "1") in {0, 1}


def raised(server) -> set[str]:
    """List the critical alerts that are firing."""
    found = server.values('ALERTS{alertstate="firing",severity="critical"}')
    return {one["metric"]["alertname"] for one in found}


def test_every_query_of_the_dashboards_returns_data(
    rig, consumer_port, orders, tmp_path
):
    """
    On a live platform, only queries for events that did not occur return nothing.

    The driver's page matches the registry of metrics. Prometheus evaluates every rule
    without an error. The platform works, and one critical alert fires: a row of the
    cache was altered, and a verification found it. A repair ends the alert.
    """
    rig.prepare()
    rig.execute(SNAPSHOT)
    with rig.driver():
        ports = {
            "towpath-relay": rig.admin_port,
            "towpath-sinks": driver_port(rig),
            "towpath-consumer": consumer_port,
            "towpath-orders": orders,
        }
        with prometheus(tmp_path / "prometheus", ports) as server:
            alter_a_row(rig)
            left = queries() - EMPTY
            rows = count(100_000)
            deadline = Deadline(waiting.CLOCK, waiting.stretched(PATIENCE_S))
            while left and not deadline.passed():
                rig.execute(ADD, next(rows))
                left = {one for one in left if not server.values(one)}
                waiting.CLOCK.wait(0.5)
            page = read_page(ports["towpath-sinks"])
            groups = server.get("rules")["groups"]
            waiting.until(lambda: raised(server), "an alert fires")
            firing = raised(server)
            assert verified(rig, "--repair") == 0
            waiting.until(lambda: not raised(server), "the alert ends")
    states = {(r["name"], r["health"]) for g in groups for r in g["rules"]}

    assert set() == left
    assert [] == mistakes(page, ("towpath_sink_",))
    assert [] == [name for name, health in states if health == "err"]
    assert len(states) > 20
    assert {"TowpathSinkDifferent"} == firing
