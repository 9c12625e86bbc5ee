"""
The root of ``towpath verify``: wires source, reader and report.

Exit codes: 0 equal, 1 differences, 3 a part unavailable or changes still on their way.
A difference is told even if another route could not be compared.
"""

import os
import sys
from pathlib import Path
from typing import Final

from rich.console import Console

from towpath.schemas.clock import SystemClock
from towpath.settings import Settings, Sink, load
from towpath.sinks.errors import UnknownSinkError
from towpath.sinks.kafka import Topics
from towpath.sinks.verify import report
from towpath.sinks.verify.at_rest import wait_until_at_rest
from towpath.sinks.verify.readers import reader_of
from towpath.sinks.verify.report import RouteReport, Verdict
from towpath.sinks.verify.routes import source_table, verify_route
from towpath.sinks.verify.source import Source, SourceLog

_EXIT_CODES: Final = {
    Verdict.EQUAL: 0,
    Verdict.DIFFERENT: 1,
    Verdict.UNVERIFIED: 3,
}


def verify(config: Path, sink: str, as_json: bool) -> int:  # noqa: FBT001 - a command's flag
    """
    Compare a sink with the source once nothing is on its way, and print the result.

    Args:
        config: The configuration file.
        sink: The sink's name.
        as_json: Print one JSON document.

    Raises:
        ConfigurationError: The configuration has mistakes.
        UnknownSinkError: No sink of that name is declared.
        NotAtRestError: Changes were still on their way after a minute.
        UnavailableError: Source or broker do not answer.
    """
    settings = load(config, os.environ)  # noqa: TID251 - a root
    declared = settings.sink_named(sink)
    if declared is None:
        message = f"no sink is named {sink}"
        raise UnknownSinkError(message)
    log = SourceLog(settings.database.dsn)
    try:
        cluster = Topics(settings.kafka.bootstrap_servers)
        wait_until_at_rest(settings, declared, log, cluster, SystemClock())
    finally:
        log.close()
    routes = compare(settings, declared)
    if as_json:
        sys.stdout.write(report.as_json(sink, routes) + "\n")
    else:
        report.show(Console(), sink, routes)
    return _EXIT_CODES[report.verdict_of(routes)]


def compare(settings: Settings, sink: Sink) -> list[RouteReport]:
    """
    Compare every route of a sink with one snapshot of the source, as things are.

    Raises:
        UnroutedTableError: A route reads no listed table.
        SourceUnavailableError: The database cannot be reached.
    """
    reader = reader_of(sink, settings)
    try:
        with Source(settings.database.dsn) as source:
            tables = [
                (route, source_table(route, sink, settings, source))
                for route in sink.route
            ]
            return [
                verify_route(route, table, source, reader) for route, table in tables
            ]
    finally:
        reader.close()


if __name__ == "__main__":
    sys.exit(verify(Path(sys.argv[1]), sys.argv[2], as_json="--json" in sys.argv[3:]))
