"""
Rules about the relay's operation: address, slot, heartbeats, topics, Kafka's clients.

Host, user, database and TLS become one address in libpq's form. By default the address
has no password: libpq can read the password from ``PGPASSWORD``.
"""

import re
from typing import Final
from urllib.parse import quote, urlencode

from towpath.deploy.debezium.connector import Connector, split
from towpath.deploy.debezium.rules import (
    Outcome,
    PropertyValue,
    boolean,
    not_needed,
    not_supported,
    same,
    seconds,
    taken,
    whole_number,
)
from towpath.deploy.debezium.tables import captured
from towpath.schemas.topics import heartbeat_topic, notifications_topic

RELAY: Final = "relay"
PREFIX: Final = ("source", "prefix")
BROKERS: Final = ("kafka", "bootstrap_servers")
CLIENT: Final = ("kafka", "client")
_MESSAGES: Final = ("relay", "messages")
_HEARTBEAT: Final = "__debezium-heartbeat"
_MS_PER_HOUR: Final = 3_600_000
_JAAS: Final = re.compile(
    r"""(?<![\w.])(username|password)\s*=\s*(["'])((?:(?!\2)[^\\]|\\.)*)\2""", re.DOTALL
)
# A value that a configuration provider of Kafka Connect fills in, such as ${file:a:b}.
_PROVIDED: Final = re.compile(r"\$\{[^}]*\}")
PROVIDER: Final = "Kafka Connect's configuration provider fills in the"
# Options that the relay sets itself, with the reason.
_OURS: Final = {
    "acks": "every record is acknowledged by all replicas (acks=all)",
    "enable.idempotence": "the producer is always idempotent",
    "compression.type": "records are compressed with lz4",
    "linger.ms": "the relay batches records itself, for two milliseconds",
    "batch.size": "the topics' own limits bound a batch",
    "max.request.size": "the topics' own limits bound a record",
    "buffer.memory": "relay.max_in_flight_bytes bounds the data in flight",
    "delivery.timeout.ms": "records are delivered without a time limit",
    "max.in.flight.requests.per.connection": "the producer is always idempotent",
    "transactional.id": "relay.delivery decides",
    "partitioner.class": "the relay uses the default partitioner of Java clients",
    "key.serializer": "relay.rows.format decides",
    "value.serializer": "relay.rows.format decides",
}
_SAME_NAMES: Final = ("security.protocol", "sasl.mechanism", "client.rack")
_KEPT: Final = (*_SAME_NAMES, "ssl.endpoint.identification.algorithm")


def prefix(given: PropertyValue, _connector: Connector) -> Outcome:
    """Convert the prefix of all topics."""
    return taken({PREFIX: given.value.strip()})


def takeover(given: PropertyValue, connector: Connector) -> Outcome:
    """Convert the retries and their delay to the longest wait for an active slot."""
    retries = whole_number(connector.get("slot.max.retries", default="6"))
    delay_ms = whole_number(connector.get("slot.retry.delay.ms", default="10000"))
    wait = seconds(str(retries * delay_ms))
    whole_number(given.value)
    return taken({(RELAY, "takeover_timeout_s"): wait}, "retries times delay")


def heartbeat_interval(given: PropertyValue, _connector: Connector) -> Outcome:
    """Convert the interval; heartbeats cannot be disabled."""
    if whole_number(given.value) == 0:
        return not_needed(
            "the relay sends a heartbeat every 10 s, which cannot be switched off"
        )
    return taken({(RELAY, "heartbeat_interval_s"): seconds(given.value)})


def heartbeat_prefix(given: PropertyValue, connector: Connector) -> Outcome:
    """Accept only Debezium's default prefix: the heartbeat topic has a fixed name."""
    if given.value == _HEARTBEAT:
        return same()
    topic = heartbeat_topic(connector.prefix)
    return not_supported(f"heartbeats are always in {topic}: read them there")


def retention(given: PropertyValue, _connector: Connector) -> Outcome:
    """Convert the retention of new topics to whole hours, rounded up."""
    ms = whole_number(given.value)
    if ms < 0:
        return not_supported("retention is always limited: set topics.retention_hours")
    hours = max(1, -(-ms // _MS_PER_HOUR))
    remark = "" if hours * _MS_PER_HOUR == ms else "rounded up to whole hours"
    return taken({("topics", "retention_hours"): hours}, remark)


def topic_count(name: str, given: PropertyValue) -> Outcome:
    """Convert a number of partitions or replicas; -1 is the broker's default."""
    if whole_number(given.value) == -1:
        return not_supported(f"write the broker's default to topics.{name}")
    return taken({("topics", name): whole_number(given.value)})


def partitions(given: PropertyValue, _connector: Connector) -> Outcome:
    """Convert the number of partitions of new topics."""
    return topic_count("partitions", given)


def replication(given: PropertyValue, _connector: Connector) -> Outcome:
    """Convert the number of replicas of new topics."""
    return topic_count("replication_factor", given)


def in_flight(given: PropertyValue, _connector: Connector) -> Outcome:
    """Convert the limit on the queue's size in bytes."""
    if whole_number(given.value) == 0:
        return not_needed("the data in flight is always bounded")
    return taken({(RELAY, "max_in_flight_bytes"): whole_number(given.value)})


def messages(given: PropertyValue, connector: Connector) -> Outcome:
    """Publish logical messages, all of them by default, as Debezium does."""
    if not given.value and connector.router and not captured(connector):
        return not_needed("only the outbox is captured")
    keys: dict[tuple[str, ...], object] = {(*_MESSAGES, "publish"): True}
    if given.value:
        name = "exclude" if "exclude" in given.name else "include"
        keys[(*_MESSAGES, name)] = list(split(given.value))
    return taken(keys)


def exactly_once(given: PropertyValue, _connector: Connector) -> Outcome:
    """Convert exactly-once support to delivery in Kafka's transactions."""
    if given.value.strip().lower() == "required":
        return taken({(RELAY, "delivery"): "transactional"})
    return same("no streamed record is published twice after a crash")


def brokers(given: PropertyValue, connector: Connector) -> Outcome:
    """Convert Kafka's addresses, without the prefixes of security protocols."""
    text = connector.brokers or ",".join(
        one.rpartition("://")[2] for one in split(given.value)
    )
    return taken({BROKERS: text})


def client_option(given: PropertyValue, connector: Connector) -> Outcome:
    """Convert a pass-through setting of Kafka's clients to librdkafka's name."""
    option = given.parts[-1]
    if option == "bootstrap.servers":
        return brokers(given, connector)
    if option in _OURS:
        return not_needed(_OURS[option])
    if option == "sasl.jaas.config":
        return _login(given, connector)
    if option in _KEPT:
        return taken({(*CLIENT, option): given.value})
    if option.startswith("ssl."):
        return not_supported(
            "keys and certificates are PEM files: set ssl.ca.location, "
            "ssl.certificate.location and ssl.key.location in kafka.client"
        )
    return not_supported(
        "write the option to kafka.client under librdkafka's name, if librdkafka has it"
    )


def _login(given: PropertyValue, connector: Connector) -> Outcome:
    found = {
        name: re.sub(r"\\(.)", r"\1", text)
        for name, _, text in _JAAS.findall(given.value)
    }
    if "username" not in found or _is_provided(found["username"]):
        return not_supported(
            "write librdkafka's settings for your login method to kafka.client"
        )
    keys: dict[tuple[str, ...], object] = {
        (*CLIENT, "sasl.username"): found["username"]
    }
    secret = found.get("password", "")
    if _is_provided(secret):
        return not_supported(
            f"{PROVIDER} password: set TOWPATH_KAFKA__CLIENT__SASL_PASSWORD", keys
        )
    if connector.includes_secrets and secret:
        keys[(*CLIENT, "sasl.password")] = secret
        return taken(keys)
    return not_supported(
        "passwords are left out of the file: set TOWPATH_KAFKA__CLIENT__SASL_PASSWORD, "
        "or convert with --include-secrets",
        keys,
    )


def notification_topic(given: PropertyValue, connector: Connector) -> Outcome:
    """Accept only the fixed topic of notifications."""
    ours = notifications_topic(connector.prefix)
    if given.value == ours:
        return same()
    return not_supported(f"notifications are always in {ours}: read them there")


def transaction_topic(given: PropertyValue, connector: Connector) -> Outcome:
    """Accept only the fixed topic of transaction metadata."""
    if given.value in {"", "transaction"}:
        return same()
    topic = f"{connector.prefix}.transaction"
    return not_supported(f"transaction metadata is always in {topic}: read it there")


def autocreate(given: PropertyValue, _connector: Connector) -> Outcome:
    """Compare how the connector and the relay create publications."""
    mode = given.value.strip().lower()
    if mode == "disabled":
        return same("relay init creates publications and adds new tables to them")
    if mode == "filtered":
        return same("the publication lists the captured tables, and is kept up to date")
    return not_supported(
        "the relay's publication lists the captured tables: if the publication of that "
        "name is for all tables, drop it or write another name to source.publication"
    )


def slot_drop(given: PropertyValue, _connector: Connector) -> Outcome:
    """Report that the relay never drops a slot."""
    if not boolean(given.value):
        return same("a slot is never dropped by the relay")
    return not_supported("drop it by hand: select pg_drop_replication_slot(...)")


DSN: Final = ("source", "dsn")
PASSWORD: Final = "database.password"  # noqa: S105 - the property's name
_DEFAULT_PORT: Final = "5432"
_MAX_PORT: Final = 65_535
# Debezium and libpq use the same names, but different formats for the key.
_TLS: Final = ("sslmode", "sslcert", "sslkey", "sslrootcert")
_SSL_MODES: Final = (
    "disable",
    "allow",
    "prefer",
    "require",
    "verify-ca",
    "verify-full",
)


def dsn(connector: Connector) -> str:
    """Return the source's address; libpq has defaults for missing parts."""
    user = quote(_known(connector, "database.user"), safe="")
    secret = _known(connector, PASSWORD) if connector.includes_secrets else ""
    login = f"{user}:{quote(secret, safe='')}" if secret else user
    host = _known(connector, "database.hostname").strip()
    bare = f"[{host}]" if ":" in host else quote(host, safe="")
    port = connector.get("database.port", default=_DEFAULT_PORT).strip()
    address = f"{bare}:{port}" if _is_port(port) else bare
    path = quote(_known(connector, "database.dbname"), safe="")
    options = _options(connector)
    tail = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"postgresql://{login + '@' if login else ''}{address}/{path}{tail}"


def part_of_dsn(given: PropertyValue, connector: Connector) -> Outcome:
    """Convert a property to a part of the address."""
    if not given.value:
        return not_needed("it is empty")
    if _is_provided(given.value):
        return not_supported(f"{PROVIDER} value: add it to source.dsn")
    if given.name == "database.port" and not _is_port(given.value.strip()):
        message = f"{given.value!r} is not a port"
        raise ValueError(message)
    if given.name == "database.sslmode" and given.value not in _SSL_MODES:
        known = ", ".join(_SSL_MODES)
        return not_supported(f"{given.value!r} is not one of {known}")
    remark = ""
    if given.name == "database.sslkey":
        remark = "libpq needs the key as PEM, not PKCS-8 DER"
    return taken({DSN: dsn(connector)}, remark)


def password(given: PropertyValue, connector: Connector) -> Outcome:
    """Leave a password out of the file, except with --include-secrets."""
    if not given.value:
        return not_needed("it is empty")
    if _is_provided(given.value):
        return not_supported(
            f"{PROVIDER} password: set PGPASSWORD where the relay runs, or "
            "TOWPATH_SOURCE__DSN_FILE"
        )
    if connector.includes_secrets:
        return taken({DSN: dsn(connector)})
    return not_supported(
        "passwords are left out of the file: set PGPASSWORD where the relay runs, or "
        "TOWPATH_SOURCE__DSN_FILE to a file with the whole address, or convert with "
        "--include-secrets"
    )


def key_password(given: PropertyValue, connector: Connector) -> Outcome:
    """Leave the private key's password out of the file, as ``password`` does."""
    if _is_provided(given.value):
        return not_supported(
            f"{PROVIDER} password: add sslpassword to the address in "
            "TOWPATH_SOURCE__DSN_FILE"
        )
    if given.value and connector.includes_secrets:
        return taken({DSN: dsn(connector)})
    return not_supported(
        "passwords are left out of the file: add sslpassword to the address in "
        "TOWPATH_SOURCE__DSN_FILE, or convert with --include-secrets"
    )


def keepalive(given: PropertyValue, connector: Connector) -> Outcome:
    """Convert TCP keepalives, which are on by default in both systems."""
    if boolean(given.value):
        return same("every connection has keepalives")
    return taken({DSN: dsn(connector)})


def _is_provided(text: str) -> bool:
    """Return whether a configuration provider of Kafka Connect fills in a value."""
    return _PROVIDED.search(text) is not None


def _known(connector: Connector, name: str) -> str:
    """Return a property's value; empty if a configuration provider fills it in."""
    text = connector.get(name)
    return "" if _is_provided(text) else text


def _is_port(text: str) -> bool:
    try:
        return 0 < whole_number(text) <= _MAX_PORT
    except ValueError:
        return False


def _options(connector: Connector) -> dict[str, str]:
    known = {name: _known(connector, f"database.{name}") for name in _TLS}
    options = {name: value for name, value in known.items() if value}
    if options.get("sslmode", "disable") not in _SSL_MODES:
        del options["sslmode"]
    if connector.includes_secrets and _known(connector, "database.sslpassword"):
        options["sslpassword"] = _known(connector, "database.sslpassword")
    if connector.get("database.tcpKeepAlive").strip().lower() == "false":
        options["keepalives"] = "0"
    return options
