"""
Compare every sink with the database, and sum up the results of the demo.

Each comparison is ``towpath verify`` in a separate process, two at a time.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from towpath.deploy.demo import command, parts, platform, shop
from towpath.deploy.demo.shop import COLLECTION, SIGNAL, SINK
from towpath.deploy.demo.stage import Stage
from towpath.deploy.demo.table import (
    Result,
    SagaResult,
    SinkResult,
    SnapshotResult,
    StoreResult,
    Traffic,
)
from towpath.deploy.snapshots import signals
from towpath.deploy.status import (
    dead_letter_records,
    event_records,
    read_ends,
    table_records,
)
from towpath.loadtests.bench.machine import summary
from towpath.loadtests.load import invariants
from towpath.settings import Settings, Sink, SinkKind
from towpath.sinks.kafka.client import Topics
from towpath.sinks.targets.warehouse.client import open_catalog
from towpath.sinks.verify.compare import Difference

_VERIFY_WITHIN_S: Final = 180.0
_AT_ONCE: Final = 2


@dataclass(frozen=True, slots=True)
class Published:
    """The numbers of records in the topics at one moment."""

    row_changes: int
    events: int
    dead_letters: int


def published(stage: Stage) -> Published:
    """Count the records that the relay has published so far."""
    settings = stage.settings()
    topics = Topics(settings.kafka)
    ends = stage.retried(lambda: read_ends(topics))
    return Published(
        table_records(settings, ends),
        event_records(settings, ends),
        dead_letter_records(settings, ends),
    )


def traffic(stage: Stage, before: Published) -> Traffic:
    """
    Sum up the traffic since ``before``.

    The load must have ended; the orders of its latency samples count as checkouts.
    """
    now = published(stage)
    report = shop.load_report(stage)
    return Traffic(
        checkouts=report["checkouts"] + shop.sampler_report(stage)["placed"],
        payments=report["payments"],
        cancellations=report["cancellations"],
        conflicts=report["conflicts"],
        not_started=report["not_started"],
        failed_requests=report["failures"],
        row_changes=now.row_changes - before.row_changes,
        events=now.events - before.events,
        dead_letters=now.dead_letters,
        load_s=report["elapsed_s"],
    )


def compare_sinks(stage: Stage) -> list[SinkResult]:
    """Run the viewer's command, if there is one, then verify every sink."""
    if stage.options.before_verify is not None:
        with stage.timed_step("run the command before the comparison"):
            shell = ("/bin/sh", "-c", stage.options.before_verify)
            command.run_checked(shell, _command_environment(stage))
    names = [sink.name for sink in stage.settings().sink]
    with stage.timed_step(f"compare {', '.join(names)} with the database, key by key"):
        verifications = {name: _verify(stage, name) for name in names}
        outcomes = command.run_all(verifications, _command_environment(stage), _AT_ONCE)
    return [read_findings(name, outcomes[name]) for name in names]


def check_invariants(stage: Stage, first_order: int) -> list[StoreResult]:
    """
    Check that money, stock and parcels agree in the database and in the sinks.

    Only sinks that have the tables of products, payments and shipments, and whose kind
    can be read, are checked.

    Args:
        stage: The stage; every order is settled, and every sink has caught up.
        first_order: The number of the load's first order.
    """
    stores = book_readers(stage.settings(), stage.shop_dsn)
    names = ", ".join(stores)
    with stage.timed_step(f"check money, stock and parcels in {names}"):
        return [_check(name, read, first_order) for name, read in stores.items()]


def book_readers(
    settings: Settings, shop_dsn: str
) -> dict[str, Callable[[], invariants.StoreContents]]:
    """
    Return a reader for each store that has the invariants' tables, by the store's name.

    Sinks of kinds that the invariants cannot read are left out.
    """
    source = partial(invariants.read_source, shop_dsn)
    stores: dict[str, Callable[[], invariants.StoreContents]] = {"database": source}
    wanted = parts.shop_topics(settings)
    for sink in settings.sink:
        read = _reader(sink, settings.database.prefix)
        if read is not None and {r.topic for r in sink.route}.issuperset(wanted):
            stores[sink.name] = read
    return stores


def _reader(sink: Sink, prefix: str) -> Callable[[], invariants.StoreContents] | None:
    match sink.kind:
        case SinkKind.CACHE:
            return partial(invariants.read_cache, sink.url, prefix)
        case SinkKind.SEARCH:
            return partial(invariants.read_search, sink.url)
        case SinkKind.WAREHOUSE:
            return lambda: invariants.read_warehouse(open_catalog(sink))
        case _:
            return None


def _check(
    name: str, read: Callable[[], invariants.StoreContents], first_order: int
) -> StoreResult:
    try:
        contents = read()
    except Exception as error:  # noqa: BLE001 - any driver's
        reason = f"{type(error).__name__}: {error}"
        return StoreResult(name=name, failure=reason)
    found = invariants.findings(contents, first_order)
    return StoreResult(name=name, orders=len(contents.orders), findings=tuple(found))


# The orders of the load by their last status; the services write the reasons.
_SAGAS: Final = """
select status::text, coalesce(cancel_reason, '') as reason, count(*) as orders
  from shop.orders
 where id >= %s
 group by 1, 2
 order by 3 desc
"""


def sagas(stage: Stage, first_order: int) -> SagaResult:
    """Sum up the outcomes of the load's orders; every order must be settled."""
    rows = platform.read_rows(stage.shop_dsn, _SAGAS, first_order)
    ended = Counter[str]()
    reasons = Counter[str]()
    for status, reason, orders in rows:
        ended[status] += orders
        if status == invariants.CANCELLED:
            reasons[reason or "by the customer"] += orders
    return SagaResult(ended=dict(ended), reasons=dict(reasons))


def sum_up(
    stage: Stage,
    traffic: Traffic,
    findings: list[SinkResult],
    business: tuple[SagaResult, list[StoreResult]],
    restarts: int | None = None,
    peak_memory_bytes: int | None = None,
) -> Result:
    """Return the result that the final table shows."""
    latencies = shop.sampler_report(stage).get("sinks", {})
    return Result(
        orders_before=stage.options.orders,
        traffic=traffic,
        sinks=tuple(_timed(one, latencies.get(one.name)) for one in findings),
        sagas=business[0],
        stores=tuple(business[1]),
        snapshot=_snapshot(stage),
        restarts=restarts,
        peak_memory_bytes=peak_memory_bytes,
        elapsed_s=round(stage.elapsed_s(), 1),
        machine=summary(),
    )


def _verify(stage: Stage, name: str) -> command.CommandLine:
    arguments = ("verify", name, "--json", "--config", str(stage.config))
    return command.python_module(parts.CLI, *arguments)


def _command_environment(stage: Stage) -> command.CommandEnvironment:
    env = {**stage.environment, "TOWPATH_CONFIG": str(stage.config)}
    return command.CommandEnvironment(env, stage.state.root, _VERIFY_WITHIN_S)


def read_findings(name: str, outcome: command.CommandOutcome) -> SinkResult:
    """Read the output of ``towpath verify``; any other output is a failure."""
    try:
        return _finding(name, json.loads(outcome.output))
    except (ValueError, KeyError, TypeError):
        printed = (outcome.errors or outcome.output).strip()
        failure = printed or f"towpath verify exited with code {outcome.code}"
        return SinkResult(name=name, failure=failure)


def _finding(name: str, document: Mapping[str, Any]) -> SinkResult:
    routes = document["routes"]
    named = [
        f"{route['route']} {Difference(**one)}"
        for route in routes
        for one in route["first"]
    ]
    # A route that was not read to its end proves nothing, and neither does a row that
    # changed at every comparison.
    is_proven = document["result"] != "unverified"
    return SinkResult(
        name=name,
        compared=sum(route["source_rows"] for route in routes),
        differences=document["differences"] if is_proven else None,
        named=tuple(named),
        failure="; ".join(_doubts(document)) or None,
    )


def _doubts(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons why a comparison is incomplete."""
    if document["error"]:
        yield document["error"]
    for route in document["routes"]:
        if route["error"]:
            yield f"{route['route']}: {route['error']}"
        if route["restless"]:
            count = route["restless"]
            keys = "1 key" if count == 1 else f"{count:,} keys"
            yield f"{route['route']}: {keys} changed at every comparison"


def _timed(finding: SinkResult, report: Mapping[str, Any] | None) -> SinkResult:
    if report is None:
        return finding
    latency = report["latency"]
    return replace(
        finding,
        samples=latency["count"],
        lost=report["lost"] + report["awaited"],
        p50_ms=latency["p50_ms"],
        p95_ms=latency["p95_ms"],
        p99_ms=latency["p99_ms"],
    )


def _snapshot(stage: Stage) -> SnapshotResult:
    rows = signals.progress(stage.source(), SIGNAL)
    delivered = sum(row.rows for row in rows)
    changed = platform.count_changed(stage.shop_dsn, SIGNAL, COLLECTION)
    took_s = sum(row.elapsed_s or 0.0 for row in rows)
    return SnapshotResult(
        sink=SINK,
        rows=delivered,
        rows_per_s=round(delivered / took_s, 1) if took_s else 0.0,
        changed_meanwhile=changed,
        wanted_changes=stage.plan.wanted_changes,
        dropped=sum(row.dropped for row in rows),
    )
