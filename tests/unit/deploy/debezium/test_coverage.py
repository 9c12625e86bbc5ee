"""Every property of the connector and of its router is known by name."""

import pytest

from towpath.deploy.debezium.connector import ROUTER_TYPE, Connector
from towpath.deploy.debezium.conversion import convert, shown_name
from towpath.deploy.debezium.rules import Finding, PropertyStatus

# The 59 properties in the connector's documented table, in its order and under its
# names, each with a sensible value.
CONNECTOR = {
    "name": "inventory",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "tasks.max": "1",
    "plugin.name": "pgoutput",
    "slot.name": "debezium",
    "slot.drop.on.stop": "false",
    "publication.name": "dbz_publication",
    "database.hostname": "db",
    "database.port": "5432",
    "database.user": "u",
    "database.password": "secret",
    "database.dbname": "d",
    "database.server.name": "fulfillment",
    "schema.whitelist": "s",
    "schema.blacklist": "t",
    "table.whitelist": "s.a,s.b",
    "table.blacklist": "s.c",
    "column.whitelist": "s.a.x",
    "column.blacklist": "s.a.y",
    "time.precision.mode": "adaptive",
    "decimal.handling.mode": "precise",
    "hstore.handling.mode": "map",
    "interval.handling.mode": "numeric",
    "database.sslmode": "require",
    "database.sslcert": "/c",
    "database.sslkey": "/k",
    "database.sslpassword": "secret",
    "database.sslrootcert": "/r",
    "database.tcpKeepAlive": "true",
    "tombstones.on.delete": "true",
    "column.truncate.to.20.chars": "s.a.t",
    "column.mask.with.3.chars": "s.a.m",
    "column.mask.hash.SHA-256.with.salt.CzQMA0cB5K": "s.a.h",
    "column.propagate.source.type": "s.a.p",
    "datatype.propagate.source.type": ".+\\.VARCHAR",
    "message.key.columns": "s.a:x,y",
    "publication.autocreate.mode": "filtered",
    "binary.handling.mode": "bytes",
    "snapshot.mode": "initial",
    "snapshot.lock.timeout.ms": "10000",
    "snapshot.select.statement.overrides": "s.a",
    "event.processing.failure.handling.mode": "fail",
    "max.queue.size": "20240",
    "max.batch.size": "10240",
    "poll.interval.ms": "1000",
    "include.unknown.datatypes": "false",
    "database.initial.statements": "set x = 1",
    "heartbeat.interval.ms": "60000",
    "heartbeat.topics.prefix": "__debezium-heartbeat",
    "heartbeat.action.query": "insert into h default values",
    "schema.refresh.mode": "columns_diff",
    "snapshot.delay.ms": "5",
    "snapshot.fetch.size": "10240",
    "slot.stream.params": "include-lsn=true",
    "sanitize.field.names": "true",
    "slot.max.retries": "6",
    "slot.retry.delay.ms": "10000",
    "toasted.value.placeholder": "__debezium_unavailable_value",
    "provide.transaction.metadata": "false",
}
# Two later properties, and two that are passed through to Kafka's clients.
LATER = {
    "incremental.snapshot.chunk.size": "1024",
    "signal.data.collection": "s.dbz_signal",
    "producer.override.compression.type": "lz4",
    "consumer.override.max.poll.records": "10",
}
# Current names of renamed properties.
RENAMED = {
    "topic.prefix": "fulfillment",
    "schema.include.list": "s",
    "schema.exclude.list": "t",
    "table.include.list": "s.a",
    "table.exclude.list": "s.c",
    "column.include.list": "s.a.x",
    "column.exclude.list": "s.a.y",
    "field.name.adjustment.mode": "avro",
    "topic.heartbeat.prefix": "beats",
    "unavailable.value.placeholder": "?",
}
ROUTER = {
    "type": ROUTER_TYPE,
    "table.field.event.id": "a",
    "table.field.event.key": "b",
    "table.field.event.type": "c",
    "table.field.event.timestamp": "d",
    "table.field.event.payload": "e",
    "table.field.event.payload.id": "f",
    "table.field.event.schema.version": "g",
    "table.fields.additional.placement": "h:header:i,j:envelope,k:partition",
    "table.fields.additional.error.on.missing": "false",
    "table.op.invalid.behavior": "error",
    "debezium.op.invalid.behavior": "error",
    "table.expand.json.payload": "true",
    "table.json.payload.null.behavior": "ignore",
    "route.by.field": "l",
    "route.topic.regex": "(?<routedByValue>.*)",
    "route.topic.replacement": "outbox.event.${routedByValue}",
    "route.tombstone.on.empty.payload": "true",
    "tracing.span.context.field": "m",
    "tracing.operation.name": "n",
    "tracing.with.context.field.only": "false",
    "predicate": "p",
}


def finding(name: str, value: str, **others: str) -> Finding:
    """Convert a connector that has this property, and return its finding."""
    base = {"connector.class": CONNECTOR["connector.class"], **others}
    found = convert(Connector({**base, name: value})).findings
    return next(each for each in found if each.name == shown_name(name))


def test_the_documented_property_table_is_complete() -> None:
    """
    There are fifty-nine properties, as many as the connector documents.
    """
    assert len(CONNECTOR) == 59


@pytest.mark.parametrize("name", [*CONNECTOR, *LATER, *RENAMED])
def test_no_property_of_the_connector_is_unknown(name: str) -> None:
    """
    Each property alone has a status and a sentence that begins with it.
    """
    value = {**CONNECTOR, **LATER, **RENAMED}[name]
    found = finding(name, value)
    assert found.text.startswith(found.status.value)

    assert found.status is not PropertyStatus.UNKNOWN


@pytest.mark.parametrize("option", ROUTER)
def test_no_option_of_the_router_is_unknown(option: str) -> None:
    """
    Each option of the event router has a status, too.
    """
    name = f"transforms.outbox.{option}"
    others = {"transforms": "outbox", "transforms.outbox.type": ROUTER_TYPE}
    found = finding(name, ROUTER[option], **others)

    assert found.status is not PropertyStatus.UNKNOWN


def test_all_properties_together_convert() -> None:
    """
    A connector with every property at once has one finding for each.
    """
    routed = {f"transforms.r.{name}": value for name, value in ROUTER.items()}
    everything = {**CONNECTOR, **LATER, **RENAMED, "transforms": "r", **routed}
    findings = convert(Connector(everything)).findings
    named = [each.name for each in findings if not each.is_implied]

    assert list(map(shown_name, everything)) == named


def test_one_of_two_names_for_a_property_is_ignored() -> None:
    """
    The old name is reported as ignored if the new one is set as well.
    """
    found = finding("table.whitelist", "s.b", **{"table.include.list": "s.a"})
    others = finding("table.include.list", "s.a", **{"table.whitelist": "s.b"})
    losers = [each for each in (found, others) if "sets the same" in each.text]

    assert [found] == losers
