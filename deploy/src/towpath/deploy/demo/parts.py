"""
The demo's own processes: services, storefront, relay, drivers, console and load.

All are described as parts. The supervisor watches all except the load, as it watches
the stack's parts, and restarts those that die. The load is never restarted.
"""

import secrets
from pathlib import Path
from typing import Final

from towpath import loadtests
from towpath.deploy.demo.command import CommandLine, python_module
from towpath.deploy.demo.screen import DemoScreen
from towpath.deploy.demo.stage import DemoOptions, DemoPlan, OwnStage, Stage
from towpath.deploy.local import own_stack, ports
from towpath.deploy.local.part import Part
from towpath.deploy.local.ports import LOOPBACK, get_page
from towpath.deploy.local.stack import Stack
from towpath.deploy.local.supervisor import Supervisor
from towpath.schemas.clock import SystemClock
from towpath.settings import Settings
from towpath.sinks.jars import java, store
from towpath.sinks.targets.warehouse.client import CATALOG

ORDERS: Final = "orders"
INVENTORY: Final = "inventory"
PAYMENTS: Final = "payments"
SHIPPING: Final = "shipping"
SERVICES: Final = (ORDERS, INVENTORY, PAYMENTS, SHIPPING)
STOREFRONT: Final = "storefront"
RELAY: Final = "relay"
SERVING: Final = "serving"
WAREHOUSE: Final = "warehouse"
CONSOLE: Final = "console"
LOAD: Final = "load"
CLI: Final = "towpath.cli"

# A Spark session starts in six seconds on a free core; here two start with other parts.
_SPARK_READY_WITHIN_S: Final = 120.0
# The file that users give to locust.
_LOCUSTFILE: Final = "locustfile.py"
_SAMPLES_EVERY_S: Final = 0.25
# On a busy machine, more customers would make all of them wait for seconds.
_MAX_OUTSTANDING: Final = 100
# How long an order waits for its customer, and how long the demo waits for its last
# orders.
_PAYMENT_S: Final = 15
# Longer than a saga takes on two busy cores.
_SAGA_S: Final = 120
# Longer than any response takes under load; the load waits at most this long for
# responses at its end.
_VISIT_WITHIN_S: Final = 15
# The warehouse's readers tolerate delays of seconds, so other parts get the CPU first.
_LOW_PRIORITY: Final = ("nice", "-n", "10")


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of the demo's processes in its own state folder."""
    return {**inherited_environment(), **spark_environment(folder)}


def inherited_environment() -> dict[str, str]:
    """
    Return this process's environment, without the platform's and locust's variables.

    Those variables could name a different configuration, or override the demo's.
    """
    inherited = own_stack.environment().items()
    return {name: text for name, text in inherited if not name.startswith("LOCUST_")}


def spark_environment(folder: Path) -> dict[str, str]:
    """Return the variables that name a Spark driver's Java runtime and archives."""
    return {
        "JAVA_HOME": str(java.spark_home(folder / "java")),
        "TOWPATH_JARS": str(store.folder()),
        "TOWPATH_SPARK_JARS": str(store.of("spark")),
        # These drivers run for minutes: the C2 compiler would take half of the CPU time
        # of a first fill, which is more than its code saves.
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",
    }


def own_stage(
    local: tuple[Stack, Supervisor],
    screen: DemoScreen,
    options: DemoOptions,
    plan: DemoPlan,
) -> OwnStage:
    """Create the stage of the demo's own platform; nothing is started."""
    stack, supervisor = local
    clock, chosen = (
        SystemClock(),
        ports.free_ports_for((*SERVICES, STOREFRONT, RELAY, CONSOLE)),
    )
    return OwnStage(
        options=options,
        plan=plan,
        state=stack.state,
        config=stack.state.root / "towpath.toml",
        shop_url=f"http://127.0.0.1:{chosen[ORDERS]}",
        environment=environment(stack.state.root),
        restarts=supervisor.restarts,
        screen=screen,
        clock=clock,
        began_at_s=clock.monotonic_s(),
        stack=stack,
        supervisor=supervisor,
        ports=chosen,
    )


def service(stage: OwnStage, name: str, *, consumes: bool = True) -> Part:
    """Describe a service; with ``consumes`` it consumes the events of the others."""
    port = stage.ports[name]
    kafka = ("--kafka", stage.addresses.kafka) if consumes else ()
    command = python_module(
        f"towpath.services.{name}",
        "serve",
        *("--dsn", service_dsn(stage, name)),
        *("--registry", stage.addresses.registry_url),
        *("--port", str(port)),
        *kafka,
        *_windows(name),
    )
    return _with_health(stage, name, command)


def service_dsn(stage: OwnStage, name: str) -> str:
    """Return the source database's address for the role that has a service's name."""
    return stage.addresses.dsn("shop", name)


def storefront(stage: OwnStage) -> Part:
    """Describe the storefront, whose pages call two services and read two sinks."""
    port = stage.ports[STOREFRONT]
    command = python_module(
        "towpath.services.storefront",
        *("serve", "--port", str(port), "--orders", stage.shop_url),
        *("--inventory", f"http://{LOOPBACK}:{stage.ports[INVENTORY]}"),
        *("--search", stage.addresses.opensearch_url),
        *("--cache", stage.addresses.redis_url),
        *("--config", str(stage.config)),
    )
    # Its readiness depends on the sinks' targets, which have no orders yet.
    return _with_health(stage, STOREFRONT, command, "/health/live")


def _windows(name: str) -> tuple[str, ...]:
    """Return the options that shorten the orders' time limits for a demo."""
    if name != ORDERS:
        return ()
    return (
        *("--payment-seconds", str(_PAYMENT_S)),
        *("--confirmation-seconds", str(_SAGA_S), "--delivery-seconds", str(_SAGA_S)),
    )


def relay(stage: OwnStage) -> Part:
    """Describe the relay."""
    command = python_module(CLI, "relay", "run", "--config", str(stage.config))
    return _with_health(stage, RELAY, command)


def console(stage: OwnStage) -> Part:
    """Describe the console, and write a new token for its login."""
    token = console_token(stage)
    token.touch(mode=0o600)
    token.write_text(f"{secrets.token_urlsafe()}\n", encoding="utf-8")
    command = python_module(
        CLI,
        *("console", "--config", str(stage.config)),
        *("--port", str(stage.ports[CONSOLE]), "--token-file", str(token)),
        *("--demo", str(stage.state.root)),
    )
    return _with_health(stage, CONSOLE, command)


def console_token(stage: OwnStage) -> Path:
    """Return the file with the console's login token."""
    return stage.state.root / "console.token"


def _with_health(
    stage: OwnStage, name: str, command: CommandLine, path: str = "/health/ready"
) -> Part:
    """Describe a process that reports its health on its port."""
    port = stage.ports[name]
    return Part(
        name=name,
        command=command,
        folder=stage.state.root,
        env=dict(stage.environment),
        port=port,
        probe=lambda: get_page(f"http://{LOOPBACK}:{port}{path}"),
    )


def driver(stage: Stage, name: str) -> Part:
    """Describe a Spark driver, which runs the sinks that name it."""
    command = python_module(
        CLI, "sink", "run", "--driver", name, "--config", str(stage.config)
    )
    return Part(
        name=name,
        command=(*_LOW_PRIORITY, *command) if name == WAREHOUSE else command,
        folder=stage.state.root,
        env=dict(stage.environment),
        ready_within_s=_SPARK_READY_WITHIN_S,
    )


def load(stage: Stage) -> Part:
    """Describe the load: locust without its web UI, with the project's locustfile."""
    options, plan = stage.options, stage.plan
    arrivals = options.rate + plan.settle_rate
    command = python_module(
        "locust",
        *("--locustfile", str(locustfile()), "--host", stage.shop_url),
        *("--headless", "--only-summary", "--loglevel", "WARNING"),
        *("--stop-timeout", str(_VISIT_WITHIN_S)),
        *("--load-rate", str(arrivals)),
        *("--load-return-share", str(plan.settle_rate / arrivals)),
        *("--load-return-to", "any", "--load-max-outstanding", str(_MAX_OUTSTANDING)),
        *("--load-lag-interval", str(_SAMPLES_EVERY_S)),
        *("--load-lag-after", str(plan.sample_after_s)),
        *("--load-lag-for", str(plan.sample_for_s)),
        *("--load-progress", str(progress_of(stage)), "--load-report", "none"),
        # The demo checks the stores itself, once its sinks have caught up.
        *("--load-dsn", "none"),
    )
    env = {**stage.environment, **targets(stage.settings())}
    return Part(name=LOAD, command=command, folder=stage.state.root, env=env)


def locustfile() -> Path:
    """Return locust's file: beside the package's source in a clone, else inside it."""
    package = Path(loadtests.__file__).parent
    in_clone = package.parents[2] / _LOCUSTFILE
    return in_clone if in_clone.exists() else package / _LOCUSTFILE


def progress_of(stage: Stage) -> Path:
    """Return the file to which the load writes its counts and its latency samples."""
    return stage.state.root / f"{LOAD}.json"


def shop_topics(settings: Settings) -> tuple[str, ...]:
    """Return the topics that a sink must read for its invariants to be checked."""
    tables = ("inventory.products", "payments.payments", "shipping.shipments")
    return tuple(f"{settings.database.prefix}.{table}" for table in tables)


def targets(settings: Settings) -> dict[str, str]:
    """Return the variables that the load needs to read the sinks that have orders."""
    found: dict[str, str] = {}
    for sink in settings.sink:
        named = (r for r in sink.route if r.name in {"orders", "shop.orders"})
        route = next(named, None)
        if route is None:
            # Another sink of the platform, such as a search index's next version.
            continue
        if sink.kind == "cache":
            found["CACHE_URL"] = sink.url
            found["CACHE_KEY"] = f"{settings.database.prefix}:{route.name}:{{}}"
        elif sink.kind == "search":
            found["SEARCH_URL"] = sink.url
            found["SEARCH_INDEX"] = route.name
        elif sink.kind == "warehouse":
            found["WAREHOUSE_URL"] = sink.url
            found["WAREHOUSE_CATALOG"] = CATALOG
            found["WAREHOUSE_TABLE"] = route.name
            properties = sink.warehouse.properties.items()
            pairs = [f"{name}={value}" for name, value in properties]
            found["WAREHOUSE_PROPERTIES"] = ",".join(pairs)
    return {f"TOWPATH_LOAD_{name}": value for name, value in found.items()}
