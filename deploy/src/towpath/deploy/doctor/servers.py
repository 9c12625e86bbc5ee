"""The checks of servers: source, broker, registry, and each sink with its target."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final

from towpath.schemas.clock import Clock
from towpath.schemas.findings import (
    CheckFinding,
    clock_findings,
    error_finding,
    info_finding,
    warning_finding,
)
from towpath.schemas.table_name import TableName
from towpath.schemas.topics import table_topic
from towpath.settings import RecordFormat, Settings, Sink

if TYPE_CHECKING:
    from towpath.relay.postgres.connect import Connection
    from towpath.schemas.registry import SchemaRegistry
    from towpath.sinks.kafka.rights import Rights
    from towpath.sinks.targets.checks import Finding as TargetFinding

_AVRO: Final = "AVRO"


def source_findings(settings: Settings, clock: Clock) -> list[CheckFinding]:
    """
    Check the source, its clock, and whether the relay could follow it.

    Raises:
        SourceUnavailableError: The source cannot be reached.
        SourceRefusedError: The source refuses the login or a statement.
    """
    from towpath.relay.postgres import preflight  # noqa: PLC0415 - keeps --help fast
    from towpath.relay.postgres.connect import connect, translated_errors  # noqa: PLC0415

    with connect(settings.database.dsn) as connection:
        version = connection.info.server_version
        if too_old := list(preflight.version_findings(version)):
            return too_old
        with translated_errors("looking up rights"):
            missing = list(preflight.rights_findings(connection))
        return _unless_refused(missing, lambda: _examine(connection, settings, clock))


def _examine(
    connection: "Connection", settings: Settings, clock: Clock
) -> list[CheckFinding]:
    from towpath.relay.postgres import (  # noqa: PLC0415 - keeps --help fast
        known_tables,
        preflight,
        source_checks,
        source_facts,
        source_health,
        views,
    )

    before = clock.now()
    facts = source_facts.read_source_facts(connection, settings)
    after = clock.now()
    health = source_health.read_source_health(connection, settings)
    problems = source_checks.source_problems(connection, settings)
    found = [
        *preflight.capture_findings(facts, settings),
        *preflight.running_findings(facts, settings),
        *preflight.replication_findings(settings.database.dsn),
        *source_health.health_findings(health, facts, settings),
        *views.view_findings(connection, settings.relay.outbox.view),
        *known_tables.report_tables(connection, settings).findings(),
    ]
    known = {finding.what for finding in found}
    found += [problem for problem in problems if problem.what not in known]
    if facts.server.now is not None:
        found += clock_findings("the source", facts.server.now, before, after)
    return found


def broker_findings(settings: Settings) -> list[CheckFinding]:
    """
    Check the broker, the relay's rights there, and its topics.

    Raises:
        BrokerUnavailableError: The broker cannot be reached.
        BrokerRefusedError: The broker refuses the login or a request.
        StateLostError: The stored state cannot be parsed.
    """
    from towpath.relay.kafka import preflight  # noqa: PLC0415 - keeps --help fast
    from towpath.sinks.kafka.rights import missing_rights  # noqa: PLC0415

    missing = [
        error_finding(
            "kafka-rights",
            text,
            "the relay halts when the broker refuses it",
            "grant the relay's user the rights that docs/rights.md lists",
        )
        for text in missing_rights(settings.kafka, rights_of_relay(settings))
    ]
    return _unless_refused(
        missing,
        lambda: preflight.kafka_findings(preflight.read_cluster(settings), settings),
    )


def rights_of_relay(settings: Settings) -> "Rights":
    """Return the Kafka rights that the relay's user needs, as in docs/rights.md."""
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
    missing_rights: list[CheckFinding], examine: Callable[[], list[CheckFinding]]
) -> list[CheckFinding]:
    """
    Return the missing rights and the findings of an examination.

    If rights are missing, they explain why an examination was refused; the refusal then
    adds no finding.
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


def registry_findings(settings: Settings) -> list[CheckFinding]:
    """
    Check the registry and the subjects of the captured tables, if records need them.

    Raises:
        RegistryUnavailableError: The registry cannot be reached.
        RegistryRefusedError: The server refuses the login, or is not a registry.
    """
    if settings.relay.rows.format is not RecordFormat.AVRO:
        return []
    from towpath.schemas.registry import SchemaRegistry  # noqa: PLC0415 - keeps --help fast

    with closing(SchemaRegistry(settings.registry.url)) as registry:
        registry.ping()
        return list(subject_findings(registry, settings))


def subject_findings(
    registry: "SchemaRegistry", settings: Settings
) -> Iterator[CheckFinding]:
    """Yield findings about the registry's mode, and about the tables' subjects."""
    mode = registry.mode()
    if mode == "READONLY":
        yield warning_finding(
            "registry-read-only",
            "the registry is in mode READONLY",
            "the relay halts at the first new shape of a table",
            f'PUT {settings.registry.url.rstrip("/")}/mode {{"mode": "READWRITE"}}',
        )
    for name in settings.capture.names:
        topic = table_topic(settings.database.prefix, TableName.parse(name))
        for subject in (f"{topic}-key", f"{topic}-value"):
            yield from _subject(registry, subject)


def _subject(registry: "SchemaRegistry", subject: str) -> Iterator[CheckFinding]:
    versions = registry.versions(subject)
    if not versions:
        return
    kind = registry.schema(subject, versions[-1]).kind
    if kind != _AVRO:
        yield error_finding(
            "registry-subject-foreign",
            f"version {versions[-1]} of subject {subject} is a schema of kind {kind}",
            "the registry refuses the relay's schema, and the relay halts",
            f"delete the subject {subject} if no reader uses it, or give [source] "
            "another prefix",
        )
    if registry.compatibility(subject) == "NONE":
        yield info_finding(
            "registry-compatibility",
            f"subject {subject} has compatibility NONE",
            "a changed column type reaches readers that cannot read it",
            f'PUT /config/{subject} {{"compatibility": "BACKWARD"}}',
        )


def sink_findings(settings: Settings, sink: Sink, clock: Clock) -> list[CheckFinding]:
    """
    Check a sink against its tables and its target, then the target's health.

    Raises:
        TowpathError: A server does not answer, or the block breaks a rule of its kind.
    """
    from towpath.sinks.cli.sink import (  # noqa: PLC0415 - keeps --help fast
        TableShapes,
        routes_without_table,
    )
    from towpath.sinks.kinds import check_kinds, kind_of  # noqa: PLC0415
    from towpath.sinks.targets.checks import check_sink, check_target  # noqa: PLC0415

    check_kinds([sink])
    with closing(TableShapes(settings)) as shapes:
        table_findings = [
            *check_sink(sink, shapes),
            *routes_without_table(settings, sink, shapes),
        ]
    target_findings = list(check_target(sink, settings))
    findings = (*table_findings, *target_findings)
    found = [_mismatch(sink, finding) for finding in findings]
    health = kind_of(sink).health
    if health is not None and not target_findings:
        found += health(sink, clock)
    return found


def _mismatch(sink: Sink, finding: "TargetFinding") -> CheckFinding:
    text = finding.text.removeprefix(f"{sink.name}: ")
    cure = f"towpath sink check {sink.name} lists all mistakes of its block"
    if not finding.is_mistake:
        effect = "the sink begins once the relay has published the table's shape"
        return warning_finding("sink-table-unannounced", text, effect, cure)
    effect = "the sink cannot write these rows as its block says"
    return error_finding("sink-unfit", text, effect, cure)
