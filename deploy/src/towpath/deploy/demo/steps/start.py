"""
Start everything: the stack, the shop with its old orders, then the platform.

The orders are there before publication and slot are created, so the stream knows
nothing of them. The two Spark drivers start as soon as there is a configuration: they
take the longest.
"""

from typing import Final

from towpath.deploy.demo import parts
from towpath.deploy.demo.command import Surroundings, must, python_module
from towpath.deploy.demo.stage import OwnStage
from towpath.deploy.local.configuration import for_shop

_SEED_WITHIN_S: Final = 180.0
_INIT_WITHIN_S: Final = 60.0

# A heartbeat a second moves the confirmed position soon after the load has stopped, and
# small chunks give a snapshot many windows for changes to fall into.
_RELAY: Final = """
[relay]
admin_port = {port}
heartbeat_interval_s = 1.0

[relay.snapshot]
chunk_rows = 2000
"""


def start_stack(stage: OwnStage) -> None:
    """Bring up the five parts, all at once; watch them; write the configuration."""
    with stage.doing("start Postgres, Kafka, registry, OpenSearch and Redis"):
        addresses = stage.stack.up()
        for part in stage.stack.parts():
            stage.supervisor.adopt(part)
        relay = _RELAY.format(port=stage.ports[parts.RELAY])
        stage.config.write_text(for_shop(addresses) + relay, encoding="utf-8")


def start_drivers(stage: OwnStage) -> None:
    """Start the two Spark drivers; others go on while they do."""
    for name in (parts.SERVING, parts.WAREHOUSE):
        stage.supervisor.start(parts.driver(stage, name))


def fill_shop(stage: OwnStage) -> None:
    """Make the shop's tables and the orders that nobody streams."""
    orders = stage.options.orders
    with stage.doing(f"place {orders:,} orders before the slot exists"):
        command = python_module(
            "towpath.services.orders",
            "seed",
            *("--dsn", stage.shop_dsn, "--orders", str(orders)),
        )
        must(command, _around(stage, _SEED_WITHIN_S))


def start_relay(stage: OwnStage) -> None:
    """Create publications and slot, then start the relay and the orders service."""
    with stage.doing("create publications and slot, start relay and orders service"):
        command = python_module(
            parts.CLI, "relay", "init", "--config", str(stage.config)
        )
        must(command, _around(stage, _INIT_WITHIN_S))
        stage.supervisor.start(parts.relay(stage))
        stage.supervisor.start(parts.orders(stage))
        stage.supervisor.wait_ready((parts.RELAY, parts.ORDERS))


def _around(stage: OwnStage, within_s: float) -> Surroundings:
    return Surroundings(stage.environment, stage.state.root, within_s)
