"""
``towpath doctor``: checks of source, broker, registry and sinks, each with its cure.

Every part is checked even if another is unavailable. Exit 0: no findings, or warnings
only; 1: an error; 3: a part could not be checked.
"""

import json as json_text
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from towpath.cli.options import ConfigOption, read_settings
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import TowpathError
from towpath.settings import RecordFormat, Settings, Sink
from towpath.settings.logs import configure_logs

if TYPE_CHECKING:
    from towpath.relay.postgres.connect import Connection
    from towpath.sinks.kafka.rights import Rights

# More than this between two clocks shows in latencies and time stamps.
_CLOCK_BOUND_S: Final = 1.0
_REFUSED: Final = "the relay halts when the broker refuses it"
_RIGHTS: Final = "grant the relay's user the rights that docs/rights.md lists"


class DoctorFinding(NamedTuple):
    """One line of the report."""

    part: str
    level: str
    what: str
    why: str
    cure: str


def doctor(
    *,
    json: Annotated[bool, Parameter(negative="")] = False,
    config: ConfigOption = None,
) -> int:
    """
    Check source, broker, registry and sinks; name the exact cure of each finding.

    Exit 1 if there is an error; warnings alone exit 0. Exit 3 if a part could not be
    checked.

    Args:
        json: Print one JSON document.
        config: Configuration file.
    """
    configure_logs()
    settings = read_settings(config)
    rows = examine(settings, SystemClock())
    if json:
        print(json_text.dumps([row._asdict() for row in rows], indent=1))
    elif rows:
        Console().print(_table(rows))
    else:
        print("nothing found: source, broker, registry and sinks are in order")
    if any(row.level == "unavailable" for row in rows):
        return 3
    return int(any(row.level == "error" for row in rows))


def examine(settings: Settings, clock: Clock) -> list[DoctorFinding]:
    """Check every part and return the findings, the most severe of each part first."""
    return [
        *_checked("source", lambda: _source(settings, clock)),
        *_checked("broker", lambda: _broker(settings)),
        *_checked("registry", lambda: _registry(settings)),
        *(
            row
            for sink in settings.sink
            for row in _checked(f"sink {sink.name}", partial(_sink, settings, sink))
        ),
    ]


def _checked(
    part: str, check: Callable[[], list[DoctorFinding]]
) -> list[DoctorFinding]:
    try:
        return sorted(check(), key=lambda row: row.level)
    except TowpathError as failure:
        level = "unavailable" if failure.exit_code == 3 else "error"  # noqa: PLR2004 - the table of exit codes
        return [
            DoctorFinding(
                part, level, str(failure), "it could not be checked", failure.remedy
            )
        ]


def _source(settings: Settings, clock: Clock) -> list[DoctorFinding]:
    from towpath.relay.postgres import preflight  # noqa: PLC0415 - keeps --help fast
    from towpath.relay.postgres.connect import connect, translated_errors  # noqa: PLC0415

    with connect(settings.database.dsn) as connection:
        with translated_errors("looking rights up"):
            missing = list(preflight.rights_findings(connection))
        rows = [DoctorFinding("source", *map(str, finding)) for finding in missing]
        return _unless_refused(rows, lambda: _examine(connection, settings, clock))


def _examine(
    connection: "Connection", settings: Settings, clock: Clock
) -> list[DoctorFinding]:
    from towpath.relay.postgres import (  # noqa: PLC0415 - keeps --help fast
        known_tables,
        preflight,
        source_checks,
        source_facts,
        views,
    )

    facts = source_facts.read_source_facts(connection, settings)
    ours = clock.now()
    of_views = views.view_findings(connection, settings.relay.outbox.view)
    of_tables = known_tables.report_tables(connection, settings).findings()
    problems = source_checks.source_problems(connection, settings)
    found = [
        *preflight.capture_findings(facts, settings),
        *preflight.running_findings(facts, settings),
        *preflight.replication_findings(settings.database.dsn),
        *of_views,
        *of_tables,
    ]
    known = {finding.what for finding in found}
    found += [problem for problem in problems if problem.what not in known]
    rows = [DoctorFinding("source", *map(str, finding)) for finding in found]
    theirs = facts.server.now
    if theirs is not None and abs((theirs - ours).total_seconds()) > _CLOCK_BOUND_S:
        rows.append(_clock_row((theirs - ours).total_seconds()))
    return rows


def _clock_row(difference_s: float) -> DoctorFinding:
    word = "ahead of" if difference_s > 0 else "behind"
    return DoctorFinding(
        "source",
        "warning",
        f"the source's clock is {abs(difference_s):.1f} s {word} this machine's",
        "latencies and the times of records are wrong by that much",
        "run a time service on both: timedatectl set-ntp true",
    )


def _broker(settings: Settings) -> list[DoctorFinding]:
    from towpath.relay.kafka import preflight  # noqa: PLC0415 - keeps --help fast
    from towpath.sinks.kafka.rights import missing_rights  # noqa: PLC0415

    def examine_broker() -> list[DoctorFinding]:
        found = preflight.kafka_findings(preflight.read_cluster(settings), settings)
        return [DoctorFinding("broker", *map(str, finding)) for finding in found]

    missing = missing_rights(settings.kafka, rights_of_relay(settings))
    rows = [
        DoctorFinding("broker", "error", text, _REFUSED, _RIGHTS) for text in missing
    ]
    return _unless_refused(rows, examine_broker)


def rights_of_relay(settings: Settings) -> "Rights":
    """Return the Kafka rights that the relay's user needs, as docs/rights.md lists."""
    from confluent_kafka.admin import (  # type: ignore[attr-defined]  # noqa: PLC0415
        AclOperation,
    )

    from towpath.relay.kafka.topics import (  # noqa: PLC0415 - keeps --help fast
        compacted_topics,
        streamed_topics,
    )
    from towpath.sinks.kafka.rights import Rights  # noqa: PLC0415

    read_only = frozenset({AclOperation.READ, AclOperation.DESCRIBE_CONFIGS})
    prefix, outbox = settings.database.prefix, settings.relay.outbox
    topics = [
        *compacted_topics(prefix),
        *streamed_topics(prefix, settings.capture.names),
        *dict.fromkeys(outbox.topic_of(view.aggregate_type) for view in outbox.view),
    ]
    operations = dict.fromkeys(topics, read_only | {AclOperation.WRITE})
    if settings.signal_topic:
        topics.append(settings.signal_topic)
        operations[settings.signal_topic] = read_only
    return Rights(operations, topics, [f"{settings.database.slot}-signals"])


def _unless_refused(
    missing_rights: list[DoctorFinding], examine: Callable[[], list[DoctorFinding]]
) -> list[DoctorFinding]:
    """
    Return the missing rights and the findings of an examination.

    The missing rights explain a refused examination, which adds no finding.
    """
    from towpath.relay.errors import (  # noqa: PLC0415 - keeps --help fast
        BrokerRefusedError,
        SourceRefusedError,
    )

    try:
        return [*missing_rights, *examine()]
    except (BrokerRefusedError, SourceRefusedError):
        if not missing_rights:
            raise
        return missing_rights


def _registry(settings: Settings) -> list[DoctorFinding]:
    """Contact the registry, if records need one."""
    if settings.relay.rows.format is not RecordFormat.AVRO:
        return []
    from towpath.schemas.registry import SchemaRegistry  # noqa: PLC0415 - keeps --help fast

    with closing(SchemaRegistry(settings.registry.url)) as registry:
        registry.ping()
    return []


def _sink(settings: Settings, sink: Sink) -> list[DoctorFinding]:
    """Check a sink against its tables and its target, as towpath sink check does."""
    from towpath.sinks.cli.tables import (  # noqa: PLC0415 - keeps --help fast
        TableShapes,
        routes_without_table,
    )
    from towpath.sinks.kinds import check_kinds  # noqa: PLC0415
    from towpath.sinks.targets.checks import check_sink, check_target  # noqa: PLC0415

    check_kinds([sink])
    with closing(TableShapes(settings)) as shapes:
        found = [
            *check_sink(sink, shapes),
            *routes_without_table(settings, sink, shapes),
        ]
    found += check_target(sink, settings)
    name = f"sink {sink.name}"
    return [
        DoctorFinding(
            name,
            "error" if finding.is_mistake else "warning",
            finding.text.removeprefix(f"{sink.name}: "),
            "the sink cannot write these rows as its block says",
            f"see towpath sink check {sink.name}",
        )
        for finding in found
    ]


def _table(rows: list[DoctorFinding]) -> Table:
    table = Table("part", "level", "finding, why it matters, cure", box=None)
    table.columns[-1].overflow = "fold"
    colours = {"error": "red", "unavailable": "red", "warning": "yellow"}
    for row in rows:
        finding = Text(row.what, style="bold")
        finding.append(f"\n{row.why}\n", style="not bold")
        finding.append(f"{row.cure}\n", style="not bold cyan")
        table.add_row(row.part, Text(row.level, style=colours[row.level]), finding)
    return table
