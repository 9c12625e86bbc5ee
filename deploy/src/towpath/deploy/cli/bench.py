"""``towpath bench`` and its subcommands; each starts and removes its own stack."""

from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

from cyclopts import App, Group, Parameter
from cyclopts.validators import LimitedChoice, Number

bench_app = App(
    name="bench", help="Benchmark against other systems, and verify the results."
)

# --kill measures no rate, so a search for the best settings would be pointless.
_ONE_OF: Final = ("Parameters", Group(validator=LimitedChoice(), show=False))

CaseName = Literal[
    "drain_1",
    "drain_1_headers",
    "drain_100",
    "steady_500",
    "steady_2000",
    "steady_5000",
]
FillCaseName = Literal["million_rows"]
LoadName = Literal["updates", "quiet"]
SinkCaseName = Literal["checkout", "catch_up"]
SustainedCaseName = Literal["checkout", "rows"]
SinkName = Literal["cache", "search", "warehouse"]


@bench_app.command(name="relay")
def bench_relay(  # noqa: PLR0913 - each is an option of the command
    *,
    case: Annotated[
        tuple[CaseName, ...], Parameter(negative="", help="Only these cases.")
    ] = (),
    rows: Annotated[int | None, Parameter(validator=Number(gte=1000))] = None,
    rounds: Annotated[int, Parameter(validator=Number(gte=1, lte=100))] = 3,
    duration: Annotated[float, Parameter(validator=Number(gte=1))] = 20.0,
    warm_up: Annotated[float, Parameter(validator=Number(gte=0))] = 10.0,
    with_debezium: Annotated[bool, Parameter(negative="")] = False,
    search: Annotated[bool, Parameter(negative="", group=_ONE_OF)] = False,
    kill: Annotated[bool, Parameter(negative="", group=_ONE_OF)] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
    keep: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """
    Measure the relay against the server's own decoding, and verify every event.

    Five cases: a committed backlog of 250-byte events, with 1 and with 100 rows per
    transaction, is drained into Kafka (drain_1, drain_100), and a steady load of 500,
    2,000 and 5,000 transactions per second is published (steady_500 to steady_5000).
    With Debezium there is a sixth, drain_1_headers, in which Debezium's events have the
    relay's five headers instead of their own six. The benchmark starts its own stack in
    a temporary folder, and removes it at the end. Everything is fetched before the
    first measurement; each case is printed when it ends.

    Exit 0 if every run's topic held every event once, unchanged and in order per key;
    1 if not (the result then has no figures); 3 if a part was unavailable.

    Args:
        case: Only these cases; may be given several times.
        rows: Rows of a backlog [300,000; with --kill 100,000].
        rounds: Runs of each system in each case; the order alternates.
        duration: Seconds for which a steady load is measured.
        warm_up: Seconds for which the broker is warmed up at first, and for which a
            steady load runs before it is measured.
        with_debezium: Also measure Debezium, stock and tuned; fetches its archives.
        search: Also measure Debezium after a search for its best settings on this
            machine: about 12 drains and 8 loads.
        kill: Instead, kill each system in the middle of a drain; count the lost and the
            repeated events, and measure the time until the first new event.
        json: Print one JSON document.
        keep: Leave logs and configuration files in place.
    """
    from towpath.deploy.bench.runner import (  # noqa: PLC0415 - keeps --help fast
        Benchmark,
        run_benchmark,
    )
    from towpath.loadtests.bench import (  # noqa: PLC0415 - as above
        context,
        measurements,
        relay,
        result,
    )

    kill_rows, backlog_rows = measurements.KILL_ROWS, context.BenchOptions().rows
    options = context.BenchOptions(
        rows=rows or (kill_rows if kill else backlog_rows),
        rounds=rounds,
        duration_s=duration,
        warm_up_s=warm_up,
        cases=context.chosen_cases(case, with_debezium=with_debezium or search),
        with_debezium=with_debezium or search,
        searches_settings=search,
    )
    measure = relay.measure_kill if kill else relay.measure_relay
    return run_benchmark(
        options, Benchmark(measure, result.draw), keep=keep, as_json=json
    )


@bench_app.command(name="snapshot")
def bench_snapshot(  # noqa: PLR0913 - each is an option of the command
    *,
    case: Annotated[
        tuple[FillCaseName, ...], Parameter(negative="", help="Only these cases.")
    ] = (),
    load: Annotated[
        tuple[LoadName, ...], Parameter(negative="", help="Only these loads.")
    ] = ("updates", "quiet"),
    rows: Annotated[int, Parameter(validator=Number(gte=1000))] = 1_000_000,
    rounds: Annotated[int, Parameter(validator=Number(gte=1, lte=100))] = 1,
    duration: Annotated[float, Parameter(validator=Number(gte=1))] = 20.0,
    warm_up: Annotated[float, Parameter(validator=Number(gte=0))] = 10.0,
    with_debezium: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
    keep: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """
    Measure how fast a snapshot reaches Kafka, and verify every row.

    A table of 200-byte rows is read into a real broker (acks=all, whole envelopes),
    once while 200 transactions per second update it and once on a quiet server; a bare
    COPY of the table is measured for comparison. The latency of the updates is measured
    before the snapshot and while it runs. The benchmark starts its own stack in a
    temporary folder, and removes it at the end.

    Exit 0 if every run's topic held every key, its last value, every update, and (for
    the relay) no row older than a change that precedes it; 1 if not (the result then
    has no figures); 3 if a part was unavailable.

    Args:
        case: The only case, million_rows, which runs by default.
        load: Only these loads; may be given several times.
        rows: Rows of the table.
        rounds: Runs of each system; the order alternates.
        duration: Seconds for which the updates alone are measured.
        warm_up: Seconds for which the broker is warmed up at first, and for which the
            updates run before they are measured.
        with_debezium: Also measure Debezium: its incremental snapshot (stock, tuned,
            and tuned and read-only), and its initial snapshot in chunks with four
            threads; fetches its archives.
        json: Print one JSON document.
        keep: Leave logs and configuration files in place.
    """
    from towpath.deploy.bench.runner import (  # noqa: PLC0415 - keeps --help fast
        Benchmark,
        run_benchmark,
    )
    from towpath.loadtests.bench.context import BenchOptions  # noqa: PLC0415 - as above
    from towpath.loadtests.bench.snapshot.fill import measure_snapshots  # noqa: PLC0415 - as above
    from towpath.loadtests.bench.snapshot.result import draw  # noqa: PLC0415 - as above

    options = BenchOptions(
        rows=rows,
        rounds=rounds,
        duration_s=duration,
        warm_up_s=warm_up,
        cases=case,
        with_debezium=with_debezium,
    )
    benchmark = Benchmark(partial(measure_snapshots, loads=load), draw)
    return run_benchmark(options, benchmark, keep=keep, as_json=json)


@bench_app.command(name="sinks")
def bench_sinks(  # noqa: PLR0913 - each is an option of the command
    *,
    case: Annotated[
        tuple[SinkCaseName, ...], Parameter(negative="", help="Only these cases.")
    ] = ("checkout", "catch_up"),
    sink: Annotated[
        tuple[SinkName, ...], Parameter(negative="", help="Only these sinks.")
    ] = ("cache", "search", "warehouse"),
    cluster: Annotated[bool, Parameter(negative="")] = False,
    rows: Annotated[int, Parameter(validator=Number(gte=1000))] = 2_000_000,
    rate: Annotated[float, Parameter(validator=Number(gt=0))] = 20.0,
    rates: str = "",
    duration: Annotated[float, Parameter(validator=Number(gte=1))] = 60.0,
    warm_up: Annotated[float, Parameter(validator=Number(gte=0))] = 20.0,
    json: Annotated[bool, Parameter(negative="")] = False,
    keep: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """
    Measure the three sinks: how long readers wait, and how fast a backlog is applied.

    checkout: customers place orders at a stated rate, with all three sinks and their
    drivers; the time from a commit to the first read that finds it is measured, through
    each target's own API. catch_up: a table is read into Kafka while no sink runs; then
    each sink alone reads it into an empty target, and is compared in the same run with
    plain pipelined writes, the search client's bulk load of the same ids, or one MERGE
    of the same rows from Parquet. With --cluster, the backlog is applied instead to the
    cache, the search index, the warehouse, and a sink without a target, which shows the
    cost of the path up to a target: each time by the driver alone, and by the executors
    of a standalone cluster with one and with two single-core workers. Each case starts
    its own stack in a temporary folder, and removes it at the end.

    Exit 0 if every sink equaled the source afterwards, key by key; 1 if not (the result
    then has no figures); 3 if a part was unavailable.

    Args:
        case: Only these cases; may be given several times.
        sink: Only these sinks catch up; may be given several times.
        cluster: Measure executors against the driver, instead of the cases.
        rows: Rows of the backlog.
        rate: Checkouts per second.
        rates: Measure several rates instead, such as 20,40,60, one after the other, and
            report the highest that met all budgets.
        duration: Seconds for which each rate is measured.
        warm_up: Seconds for which each rate runs before it is measured.
        json: Print one JSON document.
        keep: Leave logs and configuration files in place.
    """
    from towpath.deploy.bench.sinks import (  # noqa: PLC0415 - keeps --help fast
        SinkBenchOptions,
        rates_of,
        run_sink_benchmark,
    )
    from towpath.loadtests.bench.sinks.result import CLUSTER  # noqa: PLC0415 - as above

    options = SinkBenchOptions(
        cases=(CLUSTER,) if cluster else case,
        sinks=sink,
        rows=rows,
        rates=rates_of(rates) if rates else (rate,),
        duration_s=duration,
        warm_up_s=warm_up,
    )
    return run_sink_benchmark(options, keep=keep, as_json=json)


@bench_app.command(name="outbox")
def bench_outbox(
    *,
    writers: Annotated[int, Parameter(validator=Number(gte=1, lte=64))] = 2,
    rounds: Annotated[int, Parameter(validator=Number(gte=1, lte=100))] = 3,
    duration: Annotated[float, Parameter(validator=Number(gte=1))] = 10.0,
    warm_up: Annotated[float, Parameter(validator=Number(gte=0))] = 2.0,
    json: Annotated[bool, Parameter(negative="")] = False,
    keep: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """
    Measure commits per second with and without an event, in the library's three ways.

    Each writer is a process with one connection, which inserts a row and records its
    event, through psycopg 3 and with a schema. The same transaction without an event,
    and one with a handwritten insert into the outbox, are measured for comparison. The
    benchmark starts its own stack in a temporary folder, and removes it at the end.

    Exit 0 if every row had its event in the log exactly once; 1 if not (the result then
    has no figures); 3 if a part was unavailable.

    Args:
        writers: The number of writers that run in parallel.
        rounds: Runs of each way; the order alternates.
        duration: Seconds for which each way is measured.
        warm_up: Seconds for which each way runs before it is measured.
        json: Print one JSON document.
        keep: Leave logs and configuration files in place.
    """
    from towpath.deploy.bench.outbox import (  # noqa: PLC0415 - keeps --help fast
        draw,
        measure_outbox,
    )
    from towpath.deploy.bench.runner import (  # noqa: PLC0415 - as above
        Benchmark,
        run_benchmark,
    )
    from towpath.loadtests.bench.context import BenchOptions  # noqa: PLC0415 - as above

    options = BenchOptions(
        rows=0, rounds=rounds, duration_s=duration, warm_up_s=warm_up
    )
    benchmark = Benchmark(partial(measure_outbox, writers=writers), draw)
    return run_benchmark(options, benchmark, keep=keep, as_json=json)


@bench_app.command(name="checkout")
def bench_checkout(  # noqa: PLR0913 - each is an option of the command
    *,
    case: SustainedCaseName = "checkout",
    rates: str = "",
    refine: Annotated[int, Parameter(validator=Number(gte=0, lte=10))] = 1,
    orders: Annotated[int, Parameter(validator=Number(gte=0))] = 50_000,
    duration: Annotated[float, Parameter(validator=Number(gte=1))] = 300.0,
    warm_up: Annotated[float, Parameter(validator=Number(gte=0))] = 60.0,
    json: Annotated[bool, Parameter(negative="")] = False,
    keep: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """
    Find the highest rate that the whole shop sustains here, and what limits it.

    checkout: four services, relay, drivers and the three sinks, and customers who check
    out, pay, cancel and return at an open-loop rate. rows: only relay and sinks, fed
    with SQL. The rate is raised until it is no longer sustained: it was not reached, a
    request or a read failed, a sample was lost, a part restarted, or a backlog grew
    during the measured time (unsettled orders, bytes of the log or records of a sink).
    Each rate is printed when it ends, with the lag that readers of each sink saw, the
    duration of a saga, and the CPU time of each part. The benchmark starts its own
    stack in a temporary folder, and removes it at the end.

    Exit 0 if every sink equaled the source afterwards and, in the case checkout, money,
    stock and parcels agreed in the source and in every sink; 1 if not (the result then
    has no figures); 3 if a part was unavailable.

    Args:
        case: checkout, or rows.
        rates: Steps in ascending order, such as 10,20,40: checkouts or rows per second
            [5,10,20,40,80; rows: 1000,2500,5000].
        refine: The number of rates to try between the highest sustained and the next
            step.
        orders: The number of orders that exist before the relay starts.
        duration: Seconds for which each rate is measured.
        warm_up: Seconds for which each rate runs before it is measured; unpaid orders
            are canceled after 15 seconds.
        json: Print one JSON document.
        keep: Leave logs and configuration files in place.
    """
    from towpath.deploy.bench.checkout import (  # noqa: PLC0415 - keeps --help fast
        RATES,
        CheckoutBenchOptions,
        run_checkout_benchmark,
    )
    from towpath.deploy.bench.sinks import rates_of  # noqa: PLC0415 - as above

    options = CheckoutBenchOptions(
        case=case,
        rates=sorted(rates_of(rates)) if rates else RATES[case],
        refine=refine,
        orders=orders,
        duration_s=duration,
        warm_up_s=warm_up,
    )
    return run_checkout_benchmark(options, keep=keep, as_json=json)


@bench_app.command(name="all")
def bench_all(
    *,
    quick: Annotated[bool, Parameter(negative="")] = False,
    with_debezium: Annotated[bool, Parameter(negative="")] = False,
    plot: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """
    Run every benchmark, one after the other, and compare all figures in one table.

    Each runs as a separate command with its own stack, and verifies its result. Cases
    are printed as they end, and the table in Markdown at the end: the platform's
    figure, the limit, goal or other system that it is compared with, and the factor by
    which the platform is better.

    Exit 0 if every benchmark was verified, otherwise with the first code that is not 0.

    Args:
        quick: Small loads for a short time: under ten minutes on two cores.
        with_debezium: Also measure Debezium in the benchmarks of relay and snapshots.
        plot: Also write a plot to this file, as SVG.
        json: Print one JSON document with the documents of all benchmarks.
    """
    from towpath.deploy.bench.runner import (  # noqa: PLC0415 - keeps --help fast
        AllOptions,
        run_all,
    )

    return run_all(AllOptions(quick, with_debezium, json, plot))
