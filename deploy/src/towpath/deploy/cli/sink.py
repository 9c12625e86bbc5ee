"""``towpath sink run | list | check | add | refill | drop``."""

import os
from contextlib import closing
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from towpath.deploy import java
from towpath.deploy.cli.options import ConfigOption, config_file, read_settings
from towpath.deploy.cli.sink_lifecycle import add, drop, rebuild, refill
from towpath.deploy.jars import store
from towpath.deploy.sinks.tables import TableShapes, routes_without_table
from towpath.deploy.status import overview
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.settings import Settings, load
from towpath.settings.logs import configure_logs
from towpath.settings.mistakes import did_you_mean
from towpath.sinks.kinds import check_kinds
from towpath.sinks.state.declare import sink_named
from towpath.sinks.targets.checks import check_sink, check_target, check_topics

app = App(name="sink", help="Run sinks, list and check them; add, refill or drop one.")


@app.command
def run(
    *names: str,
    driver: Annotated[str | None, Parameter(name="--driver")] = None,
    config: ConfigOption = None,
) -> int:
    """
    Run sinks in one Spark driver until stopped.

    Args:
        names: The sinks; left out, all those of the driver.
        driver: The sinks that the configuration gives to this driver.
        config: Configuration file.
    """
    import towpath.sinks.__main__ as sinks  # noqa: PLC0415 - keeps --help fast

    if not names and driver is None:
        message = "name the sinks to run, or a driver"
        raise UsageError(message)
    path = config_file(config)
    environ = os.environ  # noqa: TID251 - a root
    _require_driver(load(path, environ), driver)
    if "TOWPATH_SPARK_JARS" in environ:
        return sinks.run(path, list(names), driver)
    wrapper = load(path, environ).state_folder / "java"
    return sinks.run(
        path,
        list(names),
        driver,
        java_home=java.spark_home(wrapper, environ),
        jars=store.of("spark"),
    )


@app.command(name="list")
def list_sinks(*, config: ConfigOption = None) -> int:
    """
    List the configured sinks: the state of each, and how many records it is behind.

    Dead letters are counted that are neither replayed nor discarded; awaited rows were
    requested from the source and have not arrived yet. Problems are listed below:
    failures, refused blocks, a relay that does not run. Exit 1 if there are any.

    Args:
        config: Configuration file.
    """
    configure_logs()
    settings = read_settings(config)
    document = overview((), settings, SystemClock())
    table = Table(
        *("sink", "kind", "driver", "state", "behind", "written", "dead", "parked"),
        *("awaited",),
        box=None,
    )
    for sink in document["sinks"]:
        names = ("lag_records", "rows", "open_letters", "parked", "owed")
        counts = ("?" if sink[n] is None else f"{sink[n]:,}" for n in names)
        words = (sink[n] for n in ("sink", "kind", "driver", "running_state"))
        table.add_row(*words, *counts)
    Console().print(table)
    for sentence in document["wrong"]:
        print(sentence)
    return int(bool(document["wrong"]))


@app.command
def check(*names: str, config: ConfigOption = None) -> int:
    """
    Check sinks against the tables that they read and the targets that they write.

    Mistakes in the configuration alone are reported first (exit 2); then every route
    that does not fit its table, every missing right on its topics and its target, and
    every target that does not answer (exit 1). A table of source.tables that neither
    the relay has announced nor the source has is reported, and no mistake, unless only
    an expression selects it.

    Args:
        names: The sinks; left out, all.
        config: Configuration file.
    """
    configure_logs()
    settings = read_settings(config)
    chosen = [sink_named(settings, name) for name in names] or list(settings.sink)
    check_kinds(chosen)
    found = [finding for sink in chosen for finding in check_topics(sink, settings)]
    if not found:
        with closing(TableShapes(settings)) as shapes:
            for sink in chosen:
                found += check_sink(sink, shapes)
                found += routes_without_table(settings, sink, shapes)
    found += [finding for sink in chosen for finding in check_target(sink, settings)]
    for finding in found:
        print(finding.text)
    is_bad = any(finding.is_mistake for finding in found)
    if not is_bad:
        print(f"{len(chosen)} sinks: no mistakes")
    return int(is_bad)


app.command(add)
app.command(refill)
app.command(drop)
app.command(rebuild)


def _require_driver(settings: Settings, driver: str | None) -> None:
    """Refuse a driver without sinks: it would start an engine, and wait forever."""
    known = sorted({sink.driver for sink in settings.sink})
    if driver is not None and driver not in known:
        drivers = ", ".join(known) or "none"
        message = (
            f"no sink has the driver {driver!r} (drivers: {drivers})"
            f"{did_you_mean(driver, known)}"
        )
        raise UsageError(message)
