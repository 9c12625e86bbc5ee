"""
``[kafka]``: the brokers, and the settings of every client, librdkafka's and Spark's.

``[kafka.client]`` uses librdkafka's setting names. Spark lists the offsets of the
sinks' topics through Kafka's Java client, which has other names for TLS and login.
Settings with a counterpart are translated here; a TLS or login setting without one is
reported, so that no client runs without TLS or a login by mistake. Settings that only
tune librdkafka are not translated.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

from pydantic import Field

from towpath.schemas.failure import ConfigurationError
from towpath.settings.section import Section
from towpath.settings.syntax import ClientOption


class Kafka(Section):
    """
    ``[kafka]``: the brokers.

    ``client`` has further settings of all clients under librdkafka's names: TLS, login,
    timeouts. Settings that Towpath sets itself are refused there.
    """

    bootstrap_servers: str
    # Not in the representation, because a log record or traceback may show the section
    # with its passwords.
    client: dict[ClientOption, str] = Field(default_factory=dict, repr=False)

    def __hash__(self: Self) -> int:
        return hash((self.bootstrap_servers, frozenset(self.client.items())))

    @property
    def protocol(self) -> str:
        """The security protocol, in capitals."""
        return self.client.get("security.protocol", _PLAINTEXT).strip().upper()

    @property
    def mechanism(self) -> str:
        """The SASL mechanism, in capitals; empty if not given."""
        found = (self.client.get(name, "") for name in _MECHANISMS)
        return next(filter(None, found), "").strip().upper()


_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_PLAINTEXT: Final = "PLAINTEXT"
PROTOCOLS: Final = (_PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# librdkafka accepts either name.
_MECHANISMS: Final = ("sasl.mechanism", "sasl.mechanisms")
_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_TLS: Final = ("ssl.", "ssl_", "enable.ssl.", "https.")
_LOGIN: Final = ("sasl.", "enable.sasl.")

# Settings with one counterpart that takes the same values.
_COUNTERPARTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "client.id": "client.id",
        "client.rack": "client.rack",
        "client.dns.lookup": "client.dns.lookup",
        "reconnect.backoff.ms": "reconnect.backoff.ms",
        "reconnect.backoff.max.ms": "reconnect.backoff.max.ms",
        "retry.backoff.ms": "retry.backoff.ms",
        "retry.backoff.max.ms": "retry.backoff.max.ms",
        "socket.timeout.ms": "request.timeout.ms",
        "socket.connection.setup.timeout.ms": "socket.connection.setup.timeout.ms",
        "socket.send.buffer.bytes": "send.buffer.bytes",
        "socket.receive.buffer.bytes": "receive.buffer.bytes",
        "ssl.key.password": "ssl.key.password",
        "ssl.keystore.password": "ssl.keystore.password",
    }
)
# Settings that ``_tls`` and ``_login`` translate.
_TRANSLATED: Final = frozenset(
    {
        *_MECHANISMS,
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.keystore.location",
        "ssl.endpoint.identification.algorithm",
    }
)
# Kafka's Java client reads keys only as PKCS#8.
_KEY_HEADERS: Final = ("-----BEGIN PRIVATE KEY", "-----BEGIN ENCRYPTED PRIVATE KEY")


def client_settings(
    kafka: Kafka,
    own: Mapping[str, Any] = _NOTHING,
    defaults: Mapping[str, Any] = _NOTHING,
) -> dict[str, Any]:
    """
    Return the settings of a librdkafka client.

    Args:
        kafka: The brokers.
        own: The client's own settings, which override everything.
        defaults: Settings that ``[kafka.client]`` may override.
    """
    address = {"bootstrap.servers": kafka.bootstrap_servers}
    return {**defaults, **address, **kafka.client, **own}


def spark_options(
    kafka: Kafka, read: Callable[[str], str] | None = None
) -> dict[str, str]:
    """
    Return the options of Spark's Kafka source, which begin with ``kafka.``.

    Args:
        kafka: The brokers.
        read: Reads a key or certificate file; by default from the file system.

    Raises:
        ConfigurationError: A file cannot be read, or Kafka's Java client does not
            accept the key in it or the SASL mechanism.
    """
    properties = {
        "bootstrap.servers": kafka.bootstrap_servers,
        **{
            java: kafka.client[name]
            for name, java in _COUNTERPARTS.items()
            if name in kafka.client
        },
    }
    if kafka.protocol != _PLAINTEXT:
        properties["security.protocol"] = kafka.protocol
    if kafka.protocol.startswith("SASL"):
        properties |= _login(kafka)
    if kafka.protocol.endswith("SSL"):
        properties |= _tls(kafka.client, read or _content)
    return {f"kafka.{name}": text for name, text in properties.items()}


def unused(kafka: Kafka) -> Iterator[str]:
    """List TLS and login settings that have no effect with the security protocol."""
    for name in sorted(kafka.client):
        if name.startswith(_TLS) and not kafka.protocol.endswith("SSL"):
            yield name
        if name.startswith(_LOGIN) and not kafka.protocol.startswith("SASL"):
            yield name


def without_counterpart(kafka: Kafka) -> Iterator[tuple[str, str]]:
    """Yield TLS and login settings that Spark's client lacks, each with its remedy."""
    for name in sorted(kafka.client):
        is_known = name in _COUNTERPARTS or name in _TRANSLATED
        if name.startswith((*_TLS, *_LOGIN)) and not is_known:
            yield name, "leave it out"
    if kafka.protocol.startswith("SASL") and kafka.mechanism not in _MODULES:
        # GSSAPI is librdkafka's default.
        given = kafka.mechanism or "GSSAPI"
        yield f"sasl.mechanism = {given}", f"set it to {' or '.join(_MODULES)}"


def _login(kafka: Kafka) -> dict[str, str]:
    user, password = (
        _quoted(kafka.client.get(f"sasl.{name}", ""))
        for name in ("username", "password")
    )
    module = _MODULES.get(kafka.mechanism)
    if module is None:
        message = f"kafka.client: Spark cannot log in with {kafka.mechanism!r}"
        raise ConfigurationError([message])
    return {
        "sasl.mechanism": kafka.mechanism,
        "sasl.jaas.config": f"{module} required username={user} password={password};",
    }


def _quoted(text: str) -> str:
    """Quote a value for Java's login configuration."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _tls(client: Mapping[str, str], read: Callable[[str], str]) -> dict[str, str]:
    found: dict[str, str] = {}
    authorities = _given(client, "ssl.ca", read)
    if authorities and client.get("ssl.ca.location") != "probe":
        found["ssl.truststore.type"] = "PEM"
        found["ssl.truststore.certificates"] = authorities
    if "ssl.keystore.location" in client:
        found["ssl.keystore.type"] = "PKCS12"
        found["ssl.keystore.location"] = client["ssl.keystore.location"]
    chain, key = (_given(client, f"ssl.{n}", read) for n in ("certificate", "key"))
    if chain and key:
        if not key.lstrip().startswith(_KEY_HEADERS):
            message = (
                "kafka.client: the key is not PKCS#8, which Spark needs: convert it "
                "with openssl pkcs8 -topk8"
            )
            raise ConfigurationError([message])
        found["ssl.keystore.type"] = "PEM"
        found["ssl.keystore.certificate.chain"] = chain
        found["ssl.keystore.key"] = key
    algorithm = client.get("ssl.endpoint.identification.algorithm")
    if algorithm is not None:
        is_none = algorithm.strip().lower() == "none"
        found["ssl.endpoint.identification.algorithm"] = "" if is_none else algorithm
    return found


def _given(
    client: Mapping[str, str], name: str, read: Callable[[str], str]
) -> str | None:
    """Return the value of a setting, or the contents of the file that it names."""
    location = client.get(f"{name}.location")
    if location is None or location == "probe":
        return client.get(f"{name}.pem")
    return read(location)


def _content(name: str) -> str:
    try:
        return Path(name).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a PEM file"
        message = f"kafka.client: {name}: {reason}; Spark's client needs one PEM file"
        raise ConfigurationError([message]) from error
