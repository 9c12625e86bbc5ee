"""``towpath sink run | check | fetch-jars``."""

import os
from contextlib import closing
from typing import Annotated

from cyclopts import Parameter

from towpath.cli.options import ConfigOption, config_file, read_settings
from towpath.schemas.failure import UsageError
from towpath.settings import Settings, load
from towpath.settings.logs import configure_logs
from towpath.settings.mistakes import did_you_mean
from towpath.sinks.cli.tables import TableShapes, routes_without_table
from towpath.sinks.engine import classes
from towpath.sinks.jars import fetch, java, store
from towpath.sinks.kinds import check_kinds
from towpath.sinks.state.declare import sink_named
from towpath.sinks.targets.checks import check_sink, check_target, check_topics


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


def fetch_jars() -> int:
    """
    Fetch the engine's Java archives, each checked against its sha256.

    They are fetched with Maven where it is installed, else with the Ivy of Spark, and
    kept in the cache of the user; TOWPATH_JARS names another folder. Archives that are
    there already are not fetched again. Then the engine is started once, and Java
    records its classes, so that drivers start faster.
    """
    environ = os.environ  # noqa: TID251 - a root
    wanted = [jar for jar in store.read_lock() if jar.use == "spark"]
    fetch.ensure(_print_line, environ, wanted)
    print(f"{len(wanted)} Java archives are in {store.of('spark')}")
    if classes.ensure(_print_line) is None:
        print("Java recorded no classes: drivers start, only more slowly")
    return 0


def _print_line(line: str) -> None:
    print(line, flush=True)


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
