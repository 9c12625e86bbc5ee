"""
``towpath sink run | check | fetch-jars``, and the tables that the routes of sinks read.

The relay announces a table with its first record. Until then the table is read from the
source, if the source answers, so that a mistake in a route is found before the rows
arrive. A table that only a regular expression in ``[[source]] tables`` selects is also
looked up, because no other check finds a mistyped name.
"""

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Annotated

from cyclopts import Parameter

from towpath.cli.options import ConfigOption, config_file, read_settings
from towpath.schemas.failure import TowpathError, UsageError
from towpath.schemas.table_name import TableName
from towpath.settings import RouteKind, Settings, Sink, load
from towpath.settings.logs import configure_logs
from towpath.settings.mistakes import did_you_mean
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.engine import classes
from towpath.sinks.errors import ShapeUnknownError, SourceUnavailableError
from towpath.sinks.jars import fetch, java, store
from towpath.sinks.kafka.client import KafkaRelations
from towpath.sinks.kafka.repairs import table_behind
from towpath.sinks.kinds import check_kinds
from towpath.sinks.state.declare import sink_named
from towpath.sinks.state.progress import writing
from towpath.sinks.targets.checks import Finding, check_sink, check_target, check_topics
from towpath.sinks.verify.source import Source


def run(
    *names: str,
    driver: Annotated[str | None, Parameter(name="--driver")] = None,
    config: ConfigOption = None,
) -> int:
    """
    Run sinks in one Spark driver until stopped.

    Args:
        names: The sinks; by default, all sinks of the driver.
        driver: The driver's name: its sinks run, unless sinks are named.
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
    with writing(wrapper):
        java_home = java.spark_home(wrapper, environ)
    jars = store.of("spark")
    return sinks.run(path, list(names), driver, java_home=java_home, jars=jars)


def check(*names: str, config: ConfigOption = None) -> int:
    """
    Check sinks against the tables that they read and the targets that they write to.

    Mistakes in the configuration alone are reported first (exit 2). Next are missing
    rights on topics or, if none is missing, routes that do not fit their tables; then
    targets that do not answer or deny access (exit 1). A table of source.tables that
    the relay has not announced and the source lacks is reported, too; it is a mistake
    only if nothing but a regular expression selects it.

    Args:
        names: The sinks; all by default.
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
        count = len(chosen)
        print(f"{count} {'sink' if count == 1 else 'sinks'}: no mistakes")
    return int(is_bad)


def fetch_jars() -> int:
    """
    Fetch the engine's Java archives, each checked against its sha256.

    Maven fetches them if it is installed, and Spark's Ivy fetches the rest. They are
    kept in the user's cache, or in a clone's .towpath; TOWPATH_JARS names a different
    folder. Complete archives are not fetched again. Then the engine is started once, so
    that Java writes a class archive (CDS) of the engine and drivers start faster.
    """
    environ = os.environ  # noqa: TID251 - a root
    wanted = [jar for jar in store.read_lock() if jar.use == "spark"]
    fetch.ensure(_print_line, environ, wanted)
    print(f"{len(wanted)} Java archives are in {store.of('spark')}")
    if classes.ensure(_print_line) is None:
        print("Java wrote no class archive: drivers will start more slowly")
    return 0


def _print_line(line: str) -> None:
    print(line, flush=True)


def _require_driver(settings: Settings, driver: str | None) -> None:
    """Refuse a driver without sinks: it would start an engine and wait forever."""
    known = sorted({sink.driver for sink in settings.sink})
    if driver is not None and driver not in known:
        drivers = ", ".join(known) or "none"
        message = (
            f"no sink has the driver {driver!r} (drivers: {drivers})"
            f"{did_you_mean(driver, known)}"
        )
        raise UsageError(message)


class TableShapes:
    """Shapes of tables, as announced by the relay or else as read from the source."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._announced = KafkaRelations(settings.kafka, settings.database.prefix)

    def shape(self, topic: str) -> RelationShape:
        """
        Return the shape of a topic's table.

        Raises:
            ShapeUnknownError: The relay has not announced the table, and the source
                lacks it or does not answer.
            UnavailableError: The broker does not answer.
        """
        try:
            return self._announced.shape(topic)
        except ShapeUnknownError:
            shape = self._in_source(table_behind(self._settings, topic))
            if shape is None:
                raise
            return shape

    def knows(self, topic: str) -> bool:
        """
        Return whether a topic's table has been announced, or is in the source.

        Raises:
            UnavailableError: The broker does not answer.
        """
        try:
            self.shape(topic)
        except ShapeUnknownError:
            return False
        return True

    def refresh(self) -> None:
        """
        Read the announcements that have arrived since the last read.

        Raises:
            UnavailableError: The broker does not answer.
        """
        self._announced.refresh()

    def close(self) -> None:
        """Close the connection."""
        self._announced.close()

    def _in_source(self, name: str | None) -> RelationShape | None:
        if name is None:
            return None
        database = self._settings.database
        with (
            suppress(TowpathError),
            Source(database.dsn, database.publication) as source,
        ):
            table = source.table(TableName.parse(name))
            columns = tuple(Column(one.name, one.type) for one in table.columns)
            return RelationShape(table.schema, table.name, columns, table.key, "")
        return None


def tables_by_expression(settings: Settings, sink: Sink) -> dict[str, str]:
    """Return the tables that only a regular expression selects, by route topic."""
    topics = (route.topic for route in sink.route if route.kind is RouteKind.TABLE)
    tables = ((topic, table_behind(settings, topic)) for topic in topics)
    named = settings.capture.names
    return {topic: table for topic, table in tables if table and table not in named}


def routes_without_table(
    settings: Settings, sink: Sink, shapes: TableShapes
) -> Iterator[Finding]:
    """
    Report each table that the relay has not announced and the source does not have.

    Only tables that nothing but a regular expression selects are looked up. A source
    that does not answer, or denies access to the schema, gives no findings.
    """
    unknown = [
        table
        for topic, table in tables_by_expression(settings, sink).items()
        if not shapes.knows(topic)
    ]
    if not unknown:
        return
    database = settings.database
    with (
        suppress(SourceUnavailableError),
        Source(database.dsn, database.publication) as source,
    ):
        for table in unknown:
            if _lacks(source, table):
                yield Finding(
                    f"{sink.name}: the source has no table {table}, although a "
                    "regular expression in source.tables selects it"
                )


def _lacks(source: Source, table: str) -> bool:
    """Return whether the source lacks a table; false if it does not answer."""
    with suppress(SourceUnavailableError):
        return not source.has_table(TableName.parse(table))
    return False
