"""
The demo from its first step to its last, and its cleanup.

After a failure, or Ctrl-C at any moment, every process that was started is stopped
before the run returns. Only then do signals have their usual effect again.
"""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console

from towpath.deploy.demo import compare, parts, platform, shop, table
from towpath.deploy.demo.monitor import Monitor
from towpath.deploy.demo.screen import open_screen
from towpath.deploy.demo.stage import (
    DemoOptions,
    JoinedPlatform,
    OwnStage,
    Stage,
    make_plan,
)
from towpath.deploy.local import process
from towpath.deploy.local.own_stack import demo_folder, kill_children, stop_all
from towpath.deploy.local.part import StateFolder
from towpath.deploy.local.process import interrupted_once
from towpath.deploy.local.stack import Stack
from towpath.deploy.local.supervisor import Supervisor
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.settings import load

# The outcomes of the orders, and whether they add up in each store.
Business = tuple[table.SagaResult, list[table.StoreResult]]

EQUAL: Final = 0
DIFFERENT: Final = 1

# A demo's data is disposable, so a clean stop is not worth a longer wait.
_STOP_WITHIN_S: Final = 10.0


def run_demo(options: DemoOptions, folder: Path, console: Console) -> int:
    """
    Run the demo; return 0 if every sink is equal and every invariant holds, else 1.

    Raises:
        TowpathError: The demo did not complete.
        KeyboardInterrupt: The demo was interrupted.
    """
    with interrupted_once() as interrupts, demo_folder(folder) as stack:
        supervisor = Supervisor(stack.state)
        try:
            stage, result = _run_own(options, stack, supervisor, console)
            console.print(table.draw(result))
            _write_json(result, options.json_file)
            if options.keep:
                with console.status("start console"):
                    platform.start_console(stage)
                _keep(stage, console)
        finally:
            interrupts.disable()
            _stop_everything(stack, supervisor, console)
    return _exit_code(result)


def run_joined(
    options: DemoOptions, at: JoinedPlatform, folder: Path, console: Console
) -> int:
    """
    Run the demo's load, new sink and comparison on an existing platform.

    Args:
        options: The viewer's options; the number of existing orders replaces
            ``orders``.
        at: The platform.
        folder: The demo's state folder, for its load.
        console: The output.

    Raises:
        TowpathError: The demo did not complete.
        KeyboardInterrupt: The demo was interrupted.
    """
    # The demo's processes run in the state folder.
    state, at = StateFolder(folder.resolve()), at._replace(config=at.config.resolve())
    state.create()
    with interrupted_once() as interrupts:
        try:
            # The load of a killed run may still be running.
            _stop_load(state)
            dsn = load(at.config, at.overrides).database.dsn
            counted = replace(options, orders=platform.count_orders(dsn))
            result = _run_joined(counted, at, state, console)
            console.print(table.draw(result))
            _write_json(result, options.json_file)
        finally:
            interrupts.disable()
            try:
                _stop_load(state)
            finally:
                kill_children(_STOP_WITHIN_S)
    return _exit_code(result)


def _stop_load(state: StateFolder) -> None:
    """Stop only the load: the joined platform may be a demo in the same folder."""
    process.stop(state.process_file(parts.LOAD), within_s=_STOP_WITHIN_S)


def _exit_code(result: table.Result) -> int:
    return EQUAL if result.equal and result.adds_up else DIFFERENT


def _run_joined(
    options: DemoOptions, at: JoinedPlatform, state: StateFolder, console: Console
) -> table.Result:
    clock = SystemClock()
    with open_screen(console) as screen:
        stage = Stage(
            options=options,
            plan=make_plan(options),
            state=state,
            config=at.config,
            shop_url=at.shop_url,
            environment={**parts.inherited_environment(), **at.overrides},
            restarts=lambda *_: 0,
            screen=screen,
            clock=clock,
            began_at_s=clock.monotonic_s(),
            overrides=at.overrides,
        )
        with Monitor(stage):
            platform.wait_for_sinks(stage)
            traffic, business = _run_load(stage)
            findings = compare.compare_sinks(stage)
        return compare.sum_up(stage, traffic, findings, business)


def _run_own(
    options: DemoOptions, stack: Stack, supervisor: Supervisor, console: Console
) -> tuple[OwnStage, table.Result]:
    with open_screen(console) as screen:
        stage = parts.own_stage(
            (stack, supervisor), screen, options, make_plan(options)
        )
        with Monitor(stage) as monitor:
            _start_platform(stage)
            traffic, business = _run_load(stage)
            findings = compare.compare_sinks(stage)
        peak_bytes, restarts = monitor.peak_memory_bytes, supervisor.restarts()
        result = compare.sum_up(
            stage, traffic, findings, business, restarts, peak_bytes
        )
    return stage, result


def _start_platform(stage: OwnStage) -> None:
    platform.start_stack(stage)
    platform.start_drivers(stage)
    platform.fill_shop(stage)
    platform.start_relay(stage)
    platform.start_services(stage)
    platform.fill_sinks(stage)


def _run_load(stage: Stage) -> tuple[table.Traffic, Business]:
    before = compare.published(stage)
    first_order = stage.retried(lambda: platform.next_order(stage.shop_dsn))
    shop.open_shop(stage)
    opened_at_s = stage.elapsed_s()
    stage.announce("checkouts continue")
    stage.pause(stage.plan.new_sink_after_s)
    shop.declare_sink(stage)
    shop.fill_sink(stage)
    stage.announce("checkouts continue")
    stage.pause(max(0.0, opened_at_s + stage.plan.load_s - stage.elapsed_s()))
    shop.close_shop(stage)
    platform.wait_for_sagas(stage)
    platform.settle(stage)
    traffic = compare.traffic(stage, before)
    sagas = stage.retried(lambda: compare.sagas(stage, first_order))
    return traffic, (sagas, compare.check_invariants(stage, first_order))


def _write_json(result: table.Result, path: Path | None) -> None:
    """
    Write the result to a file, after it has been printed.

    Raises:
        UsageError: The file cannot be written.
    """
    if path is None:
        return
    try:
        path.write_text(json.dumps(result.as_json(), indent=1), encoding="utf-8")
    except OSError as error:
        message = f"--json: {path}: {error.strerror or error}"
        raise UsageError(message) from error


def _keep(stage: OwnStage, console: Console) -> None:
    """Print the addresses, and leave everything running until Ctrl-C."""
    addresses = stage.addresses
    shown = {
        "console": f"http://127.0.0.1:{stage.ports[parts.CONSOLE]}",
        "console's token": str(parts.console_token(stage)),
        "storefront": f"http://127.0.0.1:{stage.ports[parts.STOREFRONT]}",
        "orders service": stage.shop_url,
        "Postgres": stage.shop_dsn,
        "Kafka": addresses.kafka,
        "schema registry": addresses.registry_url,
        "OpenSearch": addresses.opensearch_url,
        "Redis": addresses.redis_url,
        "warehouse's catalog": addresses.dsn("warehouse"),
        "relay's metrics": f"http://127.0.0.1:{stage.ports[parts.RELAY]}/metrics",
        "configuration": str(stage.config),
    }
    for name, address in shown.items():
        line = f"{name:20} {address}"
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    console.print("\nEverything keeps running; Ctrl-C stops it.")
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            stage.pause(3600.0)


def _stop_everything(stack: Stack, supervisor: Supervisor, console: Console) -> None:
    # In reverse order; each step runs even if the previous one fails.
    with contextlib.ExitStack() as steps:
        steps.callback(kill_children, _STOP_WITHIN_S)
        steps.callback(stop_all, stack.state)
        steps.callback(stack.down)
        steps.callback(supervisor.stop, _STOP_WITHIN_S)
        # Printing fails if the terminal was closed.
        console.print("[dim]stopping all parts[/dim]")
