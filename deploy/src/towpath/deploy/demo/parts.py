"""
The demo's processes beside the stack: service, relay, two Spark drivers, load, sampler.

All are described as parts; the supervisor watches the first four, as it does those of
the stack, and starts them again when they die. Load and sampler run once: they end when
they are told to.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import requests

from towpath.deploy import java
from towpath.deploy.demo.command import python_module
from towpath.deploy.demo.stage import Stage
from towpath.deploy.errors import NotReadyError
from towpath.deploy.jars import store
from towpath.deploy.local.part import Part
from towpath.deploy.local.probe import ANSWER_WITHIN_S
from towpath.settings import Settings
from towpath.sinks.warehouse.catalog import CATALOG, catalog_properties

ORDERS: Final = "orders"
RELAY: Final = "relay"
SERVING: Final = "serving"
WAREHOUSE: Final = "warehouse"
LOAD: Final = "load"
SAMPLER: Final = "sampler"
CLI: Final = "towpath.deploy.cli"

# A Spark session takes six seconds of a free core; here two start beside everything.
_SPARK_READY_WITHIN_S: Final = 120.0
_SAMPLES_EVERY_S: Final = 0.25
# A warehouse's readers wait for seconds as it is: where cores are few, others go first.
_SECOND: Final = ("nice", "-n", "10")


def environment(stage: Stage) -> dict[str, str]:
    """
    Return the environment of every process: the viewer's, without our own variables.

    They could point it at another configuration or overrule this one.
    """
    inherited = os.environ.items()  # noqa: TID251 - a root
    kept = {name: value for name, value in inherited if not _is_ours(name)}
    return {**kept, **spark_environment(stage.state.root)}


def spark_environment(folder: Path) -> dict[str, str]:
    """Return what tells a Spark driver which Java and which archives are its."""
    return {
        "JAVA_HOME": str(java.spark_home(folder / "java")),
        "TOWPATH_JARS": str(store.folder()),
        "TOWPATH_SPARK_JARS": str(store.of("spark")),
        # These drivers live for minutes: the second compiler would take more of the
        # two cores than its code gives back (half the processor time of a first fill).
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",
    }


def _is_ours(name: str) -> bool:
    return name.startswith("TOWPATH_")


def orders(stage: Stage) -> Part:
    """Describe the orders service."""
    port = stage.ports[ORDERS]
    command = python_module(
        "towpath.services.orders",
        "serve",
        *("--dsn", stage.shop_dsn),
        *("--registry", stage.addresses.registry_url),
        *("--port", str(port)),
    )
    return Part(
        name=ORDERS,
        command=command,
        folder=stage.state.root,
        env=environment(stage),
        port=port,
        probe=lambda: _answers(f"http://127.0.0.1:{port}/health/ready"),
    )


def relay(stage: Stage) -> Part:
    """Describe the relay."""
    port = stage.ports[RELAY]
    return Part(
        name=RELAY,
        command=python_module(CLI, "relay", "run", "--config", str(stage.config)),
        folder=stage.state.root,
        env=environment(stage),
        port=port,
        probe=lambda: _answers(f"http://127.0.0.1:{port}/health/ready"),
    )


def driver(stage: Stage, name: str) -> Part:
    """Describe a Spark driver: it runs the sinks that the configuration gives it."""
    command = python_module(
        CLI, "sink", "run", "--driver", name, "--config", str(stage.config)
    )
    return Part(
        name=name,
        command=(*_SECOND, *command) if name == WAREHOUSE else command,
        folder=stage.state.root,
        env=environment(stage),
        ready_within_s=_SPARK_READY_WITHIN_S,
    )


def load(stage: Stage) -> Part:
    """Describe the load program."""
    command = python_module(
        "towpath.loadtests.run",
        *("--host", stage.shop_url, "--dsn", stage.shop_dsn),
        *("--rate", str(stage.options.rate)),
        *("--settle-rate", str(stage.plan.settle_rate)),
        *("--report", str(report_of(stage, LOAD))),
    )
    return Part(
        name=LOAD, command=command, folder=stage.state.root, env=environment(stage)
    )


def sampler(stage: Stage) -> Part:
    """Describe the latency sampler."""
    command = python_module(
        "towpath.loadtests.latency",
        *("--host", stage.shop_url, "--dsn", stage.shop_dsn),
        *("--interval", str(_SAMPLES_EVERY_S)),
        *("--targets", json.dumps(targets(stage.settings()))),
        *("--report", str(report_of(stage, SAMPLER))),
    )
    return Part(
        name=SAMPLER, command=command, folder=stage.state.root, env=environment(stage)
    )


def report_of(stage: Stage, name: str) -> Path:
    """Name the file to which the load or the sampler reports."""
    return stage.state.root / f"{name}.json"


def targets(settings: Settings) -> dict[str, Mapping[str, object]]:
    """Say where a reader finds an order in each of the first three sinks."""
    found: dict[str, Mapping[str, object]] = {}
    for sink in settings.sink:
        route = next(r for r in sink.route if r.name in {"orders", "shop.orders"})
        if sink.kind == "cache":
            key = f"{settings.database.prefix}:{route.name}:{{}}"
            found[sink.name] = {"url": sink.url, "key": key}
        elif sink.kind == "search":
            found[sink.name] = {"url": sink.url, "index": route.name}
        else:
            catalog = {"name": CATALOG, "type": "sql", **catalog_properties(sink)}
            found[sink.name] = {"catalog": catalog, "table": route.name}
    return found


def _answers(url: str) -> None:
    session = requests.Session()
    # Only the loopback address is asked: a proxy in the environment must not serve.
    session.trust_env = False
    try:
        answer = session.get(url, timeout=ANSWER_WITHIN_S)
    except requests.RequestException as error:
        message = f"nobody answers at {url}"
        raise NotReadyError(message) from error
    if not answer.ok:
        message = f"{url}: {answer.status_code}"
        raise NotReadyError(message)
