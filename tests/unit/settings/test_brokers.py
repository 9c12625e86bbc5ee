"""
One setting for all Kafka clients: librdkafka's names, and those of Spark's client.
"""

import json
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from towpath.schemas.failure import ConfigurationError
from towpath.settings import Kafka, client_settings, load, spark_options

FILES = {"/ca": "CA", "/chain": "CHAIN", "/key": "-----BEGIN PRIVATE KEY-----"}
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
ROOT = Path(__file__).parents[3]


def options(client: dict[str, str]) -> dict[str, str]:
    """Return Spark's options except the address."""
    found = spark_options(Kafka(bootstrap_servers="b:1", client=client), FILES.get)
    assert "b:1" == found.pop("kafka.bootstrap.servers")
    return {name.removeprefix("kafka."): text for name, text in found.items()}


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ({}, {}),
        ({"security.protocol": "plaintext"}, {}),
        ({"security.protocol": "ssl"}, {"security.protocol": "SSL"}),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "/ca"},
            {
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": "CA",
            },
        ),
        (
            {"security.protocol": "SSL", "ssl.ca.pem": "inline"},
            {
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": "inline",
            },
        ),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "probe"},
            {"security.protocol": "SSL"},
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.certificate.location": "/chain",
                "ssl.key.location": "/key",
                "ssl.key.password": "p",
            },
            {
                "security.protocol": "SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": "CHAIN",
                "ssl.keystore.key": "-----BEGIN PRIVATE KEY-----",
                "ssl.key.password": "p",
            },
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.certificate.pem": "chain",
                "ssl.key.pem": "-----BEGIN ENCRYPTED PRIVATE KEY-----",
            },
            {
                "security.protocol": "SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": "chain",
                "ssl.keystore.key": "-----BEGIN ENCRYPTED PRIVATE KEY-----",
            },
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.keystore.location": "/store",
                "ssl.keystore.password": "p",
            },
            {
                "security.protocol": "SSL",
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": "/store",
                "ssl.keystore.password": "p",
            },
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.endpoint.identification.algorithm": "none",
            },
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""},
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.endpoint.identification.algorithm": "https",
            },
            {
                "security.protocol": "SSL",
                "ssl.endpoint.identification.algorithm": "https",
            },
        ),
        (
            {**SASL, "sasl.username": 'a"b', "sasl.password": "c\\d\ne"},
            {
                **SASL,
                "sasl.jaas.config": (
                    f'{SCRAM} username="a\\"b" password="c\\\\d\\ne";'
                ),
            },
        ),
        (
            {
                "security.protocol": "sasl_plaintext",
                "sasl.mechanisms": "plain",
                "sasl.username": "a",
                "sasl.password": "b",
            },
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": (
                    "org.apache.kafka.common.security.plain.PlainLoginModule required"
                    ' username="a" password="b";'
                ),
            },
        ),
        ({"linger.ms": "1", "queued.min.messages": "5"}, {}),
        *(
            ({name: "7"}, {java: "7"})
            for name, java in {
                "client.id": "client.id",
                "client.rack": "client.rack",
                "client.dns.lookup": "client.dns.lookup",
                "reconnect.backoff.ms": "reconnect.backoff.ms",
                "reconnect.backoff.max.ms": "reconnect.backoff.max.ms",
                "retry.backoff.ms": "retry.backoff.ms",
                "retry.backoff.max.ms": "retry.backoff.max.ms",
                "socket.timeout.ms": "request.timeout.ms",
                "socket.connection.setup.timeout.ms": (
                    "socket.connection.setup.timeout.ms"
                ),
                "socket.send.buffer.bytes": "send.buffer.bytes",
                "socket.receive.buffer.bytes": "receive.buffer.bytes",
            }.items()
        ),
    ],
)
def test_spark_gets_the_same_settings_with_its_own_names(client, expected):
    """
    Each setting that Java's library also has is translated; other tuning is left out.
    """
    assert expected == options(client)


def test_a_key_that_java_cannot_read_is_refused():
    """
    Java's library reads only PKCS#8: the error explains how to convert the key.
    """
    client = {
        "security.protocol": "SSL",
        "ssl.certificate.pem": "chain",
        "ssl.key.pem": "-----BEGIN RSA PRIVATE KEY-----",
    }
    with pytest.raises(ConfigurationError, match="openssl pkcs8 -topk8"):
        options(client)


def test_an_authority_that_is_not_a_file_is_refused(tmp_path: Path):
    """
    Librdkafka accepts a folder of authorities, but Java's library does not.
    """
    client = {"security.protocol": "SSL", "ssl.ca.location": str(tmp_path)}
    with pytest.raises(ConfigurationError, match="Spark's client needs one PEM file"):
        spark_options(Kafka(bootstrap_servers="b:1", client=client))


def test_librdkafka_gets_all_settings_in_their_order_of_precedence():
    """
    A client's own settings override the configured ones, which override defaults.
    """
    kafka = Kafka(bootstrap_servers="b:1", client={"a": "1", "b": "1", "c": "1"})
    found = client_settings(kafka, own={"a": "2"}, defaults={"b": "0", "d": "0"})

    assert {
        "bootstrap.servers": "b:1",
        "a": "2",
        "b": "1",
        "c": "1",
        "d": "0",
    } == found


@pytest.mark.parametrize(
    "name",
    [
        "acks",
        "retries",
        "message.send.max.retries",
        "enable.gapless.guarantee",
        "delivery.report.only.error",
    ],
)
def test_a_setting_on_which_delivery_depends_is_refused(name: str):
    """
    With limited retries, a record could be abandoned while later ones are delivered.
    """
    with pytest.raises(ValidationError, match=f"'{name}' is set by the relay itself"):
        Kafka(bootstrap_servers="b:1", client={name: "1"})


@pytest.mark.parametrize(
    "name",
    [
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "fetch.wait.max.ms",
        "session.timeout.ms",
    ],
)
def test_a_setting_that_the_clients_override_is_refused(name: str):
    """
    If it were accepted, it would have no effect.
    """
    with pytest.raises(ValidationError, match=f"'{name}' is set by the relay itself"):
        Kafka(bootstrap_servers="b:1", client={name: "1"})


def test_a_password_is_in_no_representation():
    """
    The section may appear in a log record or a traceback.
    """
    kafka = Kafka(bootstrap_servers="b:1", client={"sasl.password": "hunter2"})

    assert "hunter2" not in repr(kafka)


@pytest.mark.parametrize(
    ("client", "mistake"),
    [
        (
            {"sasl.username": "a"},
            (
                "kafka.client.sasl.username: has no effect with security.protocol = "
                "PLAINTEXT: set security.protocol to SASL_SSL, or remove this key"
            ),
        ),
        (
            {**SASL, "security.protocol": "SASL_PLAINTEXT", "ssl.ca.location": "/ca"},
            (
                "kafka.client.ssl.ca.location: has no effect with security.protocol = "
                "SASL_PLAINTEXT: set security.protocol to SASL_SSL, or remove this key"
            ),
        ),
        (
            {"security.protocol": "SASL_SLS"},
            (
                "kafka.client.security.protocol: 'SASL_SLS' is not one of PLAINTEXT, "
                "SSL, SASL_PLAINTEXT, SASL_SSL; did you mean 'SASL_SSL'?"
            ),
        ),
        (
            {**SASL, "enable.ssl.certificate.verification": "false"},
            (
                "kafka.client: enable.ssl.certificate.verification has no counterpart "
                "in Spark's client, which lists the sinks' offsets: leave it out "
                "(docs/configuration.md)"
            ),
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            (
                "kafka.client: sasl.mechanism = OAUTHBEARER has no counterpart in "
                "Spark's client, which lists the sinks' offsets: set it to PLAIN or "
                "SCRAM-SHA-256 or SCRAM-SHA-512 (docs/configuration.md)"
            ),
        ),
    ],
)
def test_a_setting_that_leaves_a_client_in_plaintext_is_a_mistake(
    client: dict[str, str], mistake: str, tmp_path: Path
):
    """
    TLS or login settings that a client would ignore are rejected as the file is read.
    """
    lines = "\n".join(f"{json.dumps(n)} = {json.dumps(t)}" for n, t in client.items())
    path = tmp_path / "towpath.toml"
    path.write_text(
        f"""
version = 1
[[source]]
dsn = "postgresql://u@127.0.0.1/shop"
tables = ["shop.orders"]
[kafka]
bootstrap_servers = "127.0.0.1:9092"
[kafka.client]
{lines}
[registry]
url = "http://127.0.0.1:8081"
[[sink]]
name = "cache"
kind = "cache"
url = "redis://c"
[[sink.route]]
topic = "towpath.shop.orders"
name = "orders"
"""
    )
    with pytest.raises(ConfigurationError) as caught:
        load(path, {})

    assert (mistake,) == caught.value.mistakes


# The stack and the load tests make their own brokers, which use plaintext.
OWN_BROKERS = {"deploy/local", "loadtests"}
MAKERS = {
    # Its settings come from the inbox's own reader of addresses and of a file.
    "services/src/towpath/services/plumbing/consumer.py",
    "relay/src/towpath/relay/kafka/client.py",
    "sinks/src/towpath/sinks/kafka/client.py",
}


def test_every_kafka_client_is_made_in_one_module_of_its_member():
    """
    No other module makes a client or reads an address, so none can forget TLS or login.
    """
    making = re.compile(r"\b(Consumer|Producer|AdminClient)\([^)]|bootstrap\.servers\"")
    found = [
        str(path.relative_to(ROOT))
        for member in ("relay", "sinks", "services", "settings", "deploy", "schemas")
        for path in (ROOT / member / "src").rglob("*.py")
        if making.search(path.read_text(encoding="utf-8"))
        and not any(own in str(path) for own in OWN_BROKERS)
    ]

    assert {
        "settings/src/towpath/settings/brokers.py",
        "settings/src/towpath/settings/syntax.py",
        "deploy/src/towpath/deploy/debezium/properties.py",
        "deploy/src/towpath/deploy/debezium/running.py",
        # An address on which no server listens.
        "sinks/src/towpath/sinks/engine/classes.py",
    } == set(found) - MAKERS
