"""
``towpath demo`` and ``towpath chaos``, with their subcommands.

Each starts its own stack, unless a demo joins a running platform.
"""

from pathlib import Path
from random import SystemRandom
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.console import Console

from towpath.cli.options import (
    ConfigOption,
    StateOption,
    check_output,
    config_file,
    state_folder,
)
from towpath.schemas.failure import UsageError

demo = App(
    name="demo", help="Run the whole platform; prove that sinks equal the source."
)


@demo.default
def demo_platform(  # noqa: PLR0913 - each is an option of the command
    *,
    rate: Annotated[float, Parameter(validator=Number(gt=0, lte=1000))] = 10.0,
    orders: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    duration: Annotated[float, Parameter(validator=Number(gt=0))] = 40.0,
    keep: Annotated[bool, Parameter(negative="")] = False,
    json: Path | None = None,
    before_verify: str | None = None,
    join: str | None = None,
    config: ConfigOption = None,
    state: StateOption = None,
) -> int:
    """
    Run the whole platform under load, and prove that every sink equals the database.

    Exit 0 only if nothing differs and every invariant holds; 1 if not; 3 if a part was
    unavailable. Without --keep, the demo stops everything that it has started. It has
    its own state folder, by default demo/ in the usual one, and empties that folder
    first, unless it joins a platform.

    Args:
        rate: Checkouts per second.
        orders: The number of orders that exist before the slot is created, by default
            50,000; not with --join.
        duration: The minimum time during which checkouts are made, in seconds.
        keep: Leave everything running and print the addresses, until Ctrl-C; not with
            --join.
        json: Also write the result to this file, as JSON.
        before_verify: Shell command to run when everything is at rest, before the
            sinks are compared; TOWPATH_CONFIG names the configuration.
        join: The address of the orders service of a running platform, for example in
            containers: the demo joins that platform, and starts none. The platform
            keeps the added sink.
        config: With --join, the platform's configuration; environment variables
            override it, as for every command.
        state: State folder.
    """
    from towpath.deploy.demo import run  # noqa: PLC0415 - keeps --help fast
    from towpath.deploy.demo.stage import (  # noqa: PLC0415 - keeps --help fast
        DEFAULT_ORDERS,
        DemoOptions,
        JoinedPlatform,
    )
    from towpath.deploy.local.own_stack import (  # noqa: PLC0415 - keeps --help fast
        overrides,
    )

    if join is not None and (keep or orders is not None):
        message = "--keep and --orders are for the demo's own platform, not for --join"
        raise UsageError(message)
    check_output("--json", json)
    options = DemoOptions(
        rate=rate,
        orders=DEFAULT_ORDERS if orders is None else orders,
        duration_s=duration,
        keep=keep,
        json_file=json,
        before_verify=before_verify,
    )
    folder = state or state_folder(None) / "demo"
    if join is not None:
        at = JoinedPlatform(config_file(config), join.rstrip("/"), overrides())
        return run.run_joined(options, at, folder, Console())
    return run.run_demo(options, folder, Console())


@demo.command(name="compare")
def demo_compare(  # noqa: PLR0913 - each is an option of the command
    *,
    transactions: Annotated[int, Parameter(validator=Number(gte=100))] = 2000,
    rate: Annotated[float, Parameter(validator=Number(gt=0))] = 400.0,
    interval: Annotated[float, Parameter(validator=Number(gt=0, lte=10))] = 0.1,
    seed: int = 1,
    variants: Annotated[bool, Parameter(negative="")] = False,
    plot: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    keep: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """
    Capture one table with four methods under the same load; count the missed changes.

    A change log written by triggers, polling by updated_at, the naive dual write, and
    the log relay, each on a fresh table and topic, are compared with no capture at all.
    The topic of each is compared with the table and with the committed changes, key by
    key: lost, stale and deleted rows, changes that were never seen, order. The writers'
    transactions, the server's log, its CPU time, and the time from a commit to Kafka
    are measured. The comparison starts its own stack in a temporary folder, and removes
    it at the end.

    Exit 0 if the relay missed nothing, even if the others did; 1 if it missed
    something; 3 if a part was unavailable.

    Args:
        transactions: Transactions of each load.
        rate: Transactions per second.
        interval: Pause of the polling workers between two polls, in seconds.
        seed: Seed of the load, to repeat a run.
        variants: Also run the trigger worker with each of two common mistakes, and
            polling with an overlap.
        plot: Also write a plot to this file, as SVG.
        json: Print one JSON document.
        keep: Leave logs and configuration files in place.
    """
    from towpath.deploy.bench.runner import (  # noqa: PLC0415 - keeps --help fast
        CaptureOutput,
        run_capture_comparison,
    )
    from towpath.loadtests.capture.run import CaptureOptions  # noqa: PLC0415 - as above

    options = CaptureOptions(
        transactions=transactions,
        rate_per_s=rate,
        interval_s=interval,
        seed=seed,
        with_variants=variants,
    )
    return run_capture_comparison(options, CaptureOutput(json, plot), keep=keep)


chaos_app = App(
    name="chaos", help="Break things at random, and prove that nothing is lost."
)


@chaos_app.command(name="snapshot")
def chaos_snapshot(  # noqa: PLR0913 - each is an option of the command
    *,
    minutes: Annotated[float, Parameter(validator=Number(gt=0))] = 5.0,
    seed: int | None = None,
    kill: str = "relay,backend",
    ddl: bool = True,
    round_seconds: Annotated[float, Parameter(validator=Number(gte=1))] = 20.0,
    json: Annotated[bool, Parameter(negative="")] = False,
    keep: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """
    Run snapshots under random faults, and verify every row.

    Sessions write every kind of change, some of which are in the log long before any
    query sees them; another session alters and rewrites the tables; snapshots are
    requested, stopped and paused; the relay and its sessions in the server are killed.
    A reader of the topics checks each row as it arrives, and after each round its rows
    must equal those of the tables. The test starts its own stack in a temporary folder,
    and removes it at the end.

    Exit 0 if everything was equal; 1 if not; 3 if a part was unavailable.

    Args:
        minutes: The time during which new rounds are started, in minutes.
        seed: Seed of the random actors, to repeat a run [a random seed].
        kill: The processes to kill: relay, backend, both separated by a comma, or
            nobody.
        ddl: Whether tables are altered.
        round_seconds: The length of a round before it is verified, in seconds.
        json: Print one JSON document.
        keep: Leave logs and configuration files in place.
    """
    from towpath.deploy.bench.runner import run_chaos  # noqa: PLC0415 - keeps --help fast
    from towpath.loadtests.chaos.context import VICTIMS, ChaosOptions  # noqa: PLC0415 - as above

    victims = () if kill == "nobody" else tuple(kill.split(","))
    unknown = sorted(set(victims) - set(VICTIMS))
    if unknown:
        known = f"{', '.join(VICTIMS)}, or nobody alone"
        message = f"--kill: unknown process {unknown[0]!r}; known: {known}"
        raise UsageError(message)
    options = ChaosOptions(
        minutes=minutes,
        seed=SystemRandom().randrange(10**6) if seed is None else seed,
        kill=victims,
        ddl=ddl,
        round_s=round_seconds,
    )
    return run_chaos(options, keep=keep, as_json=json)
