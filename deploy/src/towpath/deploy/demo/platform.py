"""
Start the demo's platform, fill it from existing rows, and wait until it catches up.

The old orders exist before the publications and the slot are created, so the stream
does not contain them. The two Spark drivers start as soon as there is a configuration:
they take the longest. The sinks are filled by a snapshot, which a row in the signal
table requests. The platform has caught up when two things hold: the slot's confirmed
position has passed the last commit, so every record is in Kafka; and each sink has
applied its topics to their ends.
"""

from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import psycopg

from towpath.deploy.demo import parts
from towpath.deploy.demo.command import CommandEnvironment, python_module, run_checked
from towpath.deploy.demo.stage import OwnStage, Stage
from towpath.deploy.errors import SourceUnreachableError, StepError
from towpath.deploy.local.configuration import for_shop
from towpath.deploy.snapshots import signals
from towpath.deploy.status import lag_records, read_ends
from towpath.schemas.clock import StallTimeout
from towpath.settings import Sink
from towpath.sinks.kafka.client import Topics
from towpath.sinks.kafka.progress_topic import ProgressReader
from towpath.sinks.postgres import connected

_SEED_WITHIN_S: Final = 180.0
_INIT_WITHIN_S: Final = 60.0

# A heartbeat per second advances the confirmed position soon after the load has
# stopped, and small chunks split a snapshot into many windows for changes to fall into.
_RELAY: Final = """
[relay]
admin_port = {port}
heartbeat_interval_s = 1.0

[relay.snapshot]
chunk_rows = 2000
"""


def start_stack(stage: OwnStage) -> None:
    """Start the stack's five parts and watch them; write the configuration."""
    with stage.timed_step("start Postgres, Kafka, registry, OpenSearch and Redis"):
        addresses = stage.stack.up()
        for part in stage.stack.parts():
            stage.supervisor.adopt(part)
        relay = _RELAY.format(port=stage.ports[parts.RELAY])
        stage.config.write_text(for_shop(addresses) + relay, encoding="utf-8")


def start_drivers(stage: OwnStage) -> None:
    """Start the two Spark drivers, without waiting for them."""
    for name in (parts.SERVING, parts.WAREHOUSE):
        stage.supervisor.start(parts.driver(stage, name))


def fill_shop(stage: OwnStage) -> None:
    """Create roles, tables, products with stock, and orders; no slot exists yet."""
    orders = stage.options.orders
    commands = {
        parts.ORDERS: ("seed", "--orders", str(orders)),
        parts.INVENTORY: ("seed", "--orders", str(orders)),
        parts.PAYMENTS: ("migrate",),
        parts.SHIPPING: ("migrate",),
    }
    environment = _command_environment(stage, _SEED_WITHIN_S)
    with stage.timed_step(f"place {orders:,} orders before the slot exists"):
        for name, arguments in commands.items():
            module = f"towpath.services.{name}"
            login = (
                *("--dsn", parts.service_dsn(stage, name)),
                *("--admin-dsn", stage.shop_dsn),
            )
            run_checked(python_module(module, *arguments, *login), environment)


def start_relay(stage: OwnStage) -> None:
    """Create the publications and the slot, then start the relay."""
    with stage.timed_step("create publications and slot, start the relay"):
        command = python_module(
            parts.CLI, "relay", "init", "--config", str(stage.config)
        )
        run_checked(command, _command_environment(stage, _INIT_WITHIN_S))
        stage.supervisor.start(parts.relay(stage))
        stage.supervisor.wait_ready((parts.RELAY,))


def start_services(stage: OwnStage) -> None:
    """Start the storefront and all services, which consume one another's events."""
    names = ", ".join((*parts.SERVICES, parts.STOREFRONT))
    with stage.timed_step(f"start {names}"):
        for name in parts.SERVICES:
            stage.supervisor.start(parts.service(stage, name))
        stage.supervisor.start(parts.storefront(stage))
        stage.supervisor.wait_ready((*parts.SERVICES, parts.STOREFRONT))


def start_console(stage: OwnStage) -> None:
    """Start the console, and wait until it is ready."""
    stage.supervisor.start(parts.console(stage))
    stage.supervisor.wait_ready((parts.CONSOLE,))


def start_orders(stage: OwnStage) -> None:
    """Start only the orders service: its orders wait for the other services."""
    with stage.timed_step("start orders"):
        part = parts.service(stage, parts.ORDERS, consumes=False)
        stage.supervisor.start(part)
        stage.supervisor.wait_ready((parts.ORDERS,))


def _command_environment(stage: OwnStage, within_s: float) -> CommandEnvironment:
    return CommandEnvironment(stage.environment, stage.state.root, within_s)


# Orders inside the snapshot's key range whose rows changed during the snapshot, by the
# clocks of the service and the relay, which share a machine.
_CHANGED: Final = """
select count(*)
from towpath.snapshot s
join shop.orders o
  on o.id <= (s.maximum_key ->> 0)::bigint
 and o.updated_at between s.started_at and coalesce(s.completed_at, now())
where s.snapshot_id = %s and s.collection = %s
"""
_END_OF_LOG: Final = "select pg_current_wal_lsn()::text"
_CONFIRMED: Final = """
select confirmed_flush_lsn >= %s::pg_lsn
from pg_replication_slots where slot_name = %s
"""


def count_changed(dsn: str, snapshot_id: str, collection: str) -> int:
    """Count the orders in a snapshot's key range that changed during the snapshot."""
    return int(_value(dsn, _CHANGED, snapshot_id, collection))


def count_unsettled(dsn: str) -> int:
    """Count the orders whose saga has not ended."""
    return int(_value(dsn, "select count(*) from shop.unsettled_orders"))


def next_order(dsn: str) -> int:
    """Return the lowest number that the next order can have."""
    return int(_value(dsn, "select coalesce(max(id), 0) + 1 from shop.orders"))


def count_orders(dsn: str) -> int:
    """Count the orders of the shop."""
    return int(_value(dsn, "select count(*) from shop.orders"))


def end_of_log(dsn: str) -> str:
    """Return the LSN after the last commit."""
    return str(_value(dsn, _END_OF_LOG))


def has_confirmed(dsn: str, slot: str, lsn: str) -> bool:
    """Return whether the slot's confirmed position has reached an LSN."""
    return bool(_value(dsn, _CONFIRMED, lsn, slot))


def _value(dsn: str, query: str, *arguments: object) -> Any:  # noqa: ANN401 - any column
    rows = read_rows(dsn, query, *arguments)
    return rows[0][0] if rows else None


def read_rows(dsn: str, query: str, *arguments: object) -> list[tuple[Any, ...]]:
    """
    Return the rows of a query on the shop's database.

    Raises:
        SourceUnreachableError: The source does not answer.
        StepError: The source refuses the query.
    """
    try:
        with connected(dsn) as connection:
            return connection.execute(query, arguments).fetchall()
    except psycopg.OperationalError as error:
        message = f"the source does not answer: {str(error).strip()}"
        raise SourceUnreachableError(message) from error
    except psycopg.Error as error:
        message = f"the shop cannot be read: {str(error).strip()}"
        raise StepError(message) from error


_CONFIRMED_WITHIN_S: Final = 180.0
# Covers the time limits of the last orders, and the steps after them.
_SETTLED_WITHIN_S: Final = 180.0

# A killed driver resumes after half a minute, and its first batch, which may be full,
# takes another half minute.
_STUCK_AFTER_S: Final = 120.0
_POLL_EVERY_S: Final = 0.2


def wait_for_sagas(stage: Stage) -> None:
    """Wait until every order is settled."""
    with stage.timed_step("wait until every order is settled"):
        stage.until(
            lambda: count_unsettled(stage.shop_dsn) == 0,
            "every order to be settled",
            _SETTLED_WITHIN_S,
        )


def settle(stage: Stage) -> None:
    """Wait until the relay has caught up, then every sink."""
    with stage.timed_step("wait until relay and sinks have caught up"):
        last = stage.retried(lambda: end_of_log(stage.shop_dsn))
        slot = stage.settings().database.slot
        stage.until(
            lambda: has_confirmed(stage.shop_dsn, slot, last),
            "the slot's confirmed position to pass the last commit",
            _CONFIRMED_WITHIN_S,
        )
        wait_for_sinks(stage)


def wait_for_sinks(stage: Stage) -> None:
    """
    Wait until every sink has applied the current records of its topics.

    Raises:
        StepError: The sinks make no progress.
    """
    settings = stage.settings()
    topics = Topics(settings.kafka)
    ends = stage.retried(lambda: read_ends(topics))

    published = ProgressReader(settings, stage.clock)

    def lag_of(sink: Sink) -> int:
        progress = stage.retried(lambda: published.read(sink.name))
        return lag_records(sink, {} if progress is None else progress.certain, ends)

    with closing(published):
        _until_zero(stage, lag_of)


def _until_zero(stage: Stage, lag_of: Callable[[Sink], int]) -> None:
    """Wait until no sink is behind."""
    sinks, stall = stage.settings().sink, StallTimeout(stage.clock, _STUCK_AFTER_S)
    while behind := {sink.name: lag for sink in sinks if (lag := lag_of(sink))}:
        if stall.is_over(sum(behind.values())):
            lags = ", ".join(
                f"{name} is {lag:,} records behind" for name, lag in behind.items()
            )
            message = (
                f"the sinks have applied nothing for {_STUCK_AFTER_S:.0f} s: {lags}; "
                f"logs: {stage.state.root}/logs"
            )
            raise StepError(message)
        stage.clock.wait(_POLL_EVERY_S)


_SNAPSHOT_WITHIN_S: Final = 240.0
_FAILED: Final = frozenset({"failed", "incomplete", "rejected"})

FIRST: Final = "demo-first-fill"


def fill_sinks(stage: Stage) -> None:
    """Fill the three sinks from all tables, while their drivers are still starting."""
    collections = stage.settings().collections
    with stage.timed_step(f"snapshot {', '.join(collections)}"):
        signals.request_snapshot(stage.source(), collections, signal_id=FIRST)
        wait_for_snapshot(stage, FIRST)
    with stage.timed_step("wait until the three sinks have the existing rows"):
        wait_for_sinks(stage)


def wait_for_snapshot(stage: Stage, signal_id: str) -> None:
    """
    Wait until a snapshot is complete.

    Raises:
        StepError: The snapshot failed, was rejected, or took too long.
    """
    stage.until(
        lambda: _is_complete(stage, signal_id),
        f"the snapshot {signal_id}",
        _SNAPSHOT_WITHIN_S,
    )


def _is_complete(stage: Stage, signal_id: str) -> bool:
    status, detail = signals.state(stage.source(), signal_id) or (None, None)
    if status in _FAILED:
        message = f"the snapshot {signal_id} did not complete ({status}): {detail}"
        raise StepError(message)
    return status == "completed"
