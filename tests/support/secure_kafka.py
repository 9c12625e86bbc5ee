"""
A separate broker whose clients need TLS and a login, and whose users need permissions.

It has four listeners: plaintext for the test itself, which may do everything; TLS and
SCRAM; TLS and a client certificate; and its own controller. Users have only the
permissions that ``allow`` grants.
"""

import dataclasses
import datetime as dt
import ipaddress
from collections.abc import Iterable, Mapping
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from towpath.deploy.local import lifecycle, ports, servers
from towpath.deploy.local.part import StateFolder

# A superuser.
OWNER = "owner"
PASSWORD = "Quo'te \"and\\ \\n"  # noqa: S105 - what a configuration has to quote

_SETTINGS = """\
listeners=PLAINTEXT://{host}:{plain},SASL_SSL://{host}:{login},SSL://{host}:{mutual},\
CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{plain},SASL_SSL://{host}:{login},\
SSL://{host}:{mutual}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,\
SASL_SSL:SASL_SSL,SSL:SSL
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={folder}/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
listener.name.ssl.ssl.client.auth=required
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:owner;User:CN=owner
"""


class SecureKafka:
    """The broker, with its addresses and users."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._state = StateFolder(folder)
        self._state.create()
        chosen = ports.free_ports_for(("plain", "login", "mutual", "controller"))
        self._ports = chosen
        write_certificates(folder)
        part = servers.kafka_part(self._state, chosen["plain"], chosen["controller"])
        self._part = dataclasses.replace(part, prepare=lambda: self._prepare(part))
        lifecycle.bring_up(self._part, self._state)
        self._admin = AdminClient({"bootstrap.servers": self.plain, "log_level": 0})
        self.add_user(OWNER)

    @property
    def plain(self) -> str:
        """The address for the test itself."""
        return f"{ports.LOOPBACK}:{self._ports['plain']}"

    @property
    def login(self) -> str:
        """The address that requires TLS and a login."""
        return f"{ports.LOOPBACK}:{self._ports['login']}"

    @property
    def mutual(self) -> str:
        """The address that requires TLS and a client certificate."""
        return f"{ports.LOOPBACK}:{self._ports['mutual']}"

    def client(self, user: str = OWNER) -> dict[str, str]:
        """Return the ``[kafka.client]`` settings of a user."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(self.folder / "ca.pem"),
        }

    def add_user(self, name: str) -> None:
        """Create a user without permissions."""
        terms = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        request = UserScramCredentialUpsertion(name, terms, PASSWORD.encode())
        for done in self._admin.alter_user_scram_credentials([request]).values():
            done.result(10)

    def allow(self, user: str, rights: Iterable[tuple[str, str, str, str]]) -> None:
        """Grant a user permissions: (resource type, pattern type, name, operation)."""
        bindings = [
            AclBinding(
                ResourceType[kind.upper()],
                name,
                ResourcePatternType[pattern.upper()],
                f"User:{user}",
                "*",
                AclOperation[operation.upper()],
                AclPermissionType.ALLOW,
            )
            for kind, pattern, name, operation in rights
        ]
        for done in self._admin.create_acls(bindings).values():
            done.result(10)

    def close(self) -> None:
        """Stop the broker."""
        lifecycle.take_down(self._part, self._state)

    def _prepare(self, part) -> None:
        part.prepare()
        more = _SETTINGS.format(host=ports.LOOPBACK, folder=self.folder, **self._ports)
        # If two lines have the same name, the later one applies.
        with (part.folder / "server.properties").open("a", encoding="utf-8") as file:
            file.write(more)


def toml(client: Mapping[str, str]) -> str:
    """Write the lines of ``[kafka.client]``."""
    quoted = {
        name: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        for name, text in client.items()
    }
    lines = (f'"{name}" = "{text}"' for name, text in quoted.items())
    return "\n".join(("[kafka.client]", *lines))


def write_certificates(folder: Path, age_days: int = 1) -> None:
    """
    Write certificates for an authority, a server on the loopback address, and a client.

    Certificates are valid for two days from their issue, which was ``age_days`` ago.

    The files are ``ca.pem``; ``broker.pem``, with certificate and key, and
    ``broker.key``; ``client.pem`` and ``client.key``; ``client-secret.key`` and
    ``client.p12``, which need the password.
    """
    authority = ec.generate_private_key(ec.SECP256R1())
    ca = _certificate("authority", authority, None, authority, age_days)
    _write(folder / "ca.pem", _pem(ca))
    for name in ("broker", OWNER):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name, key, ca, authority, age_days)
        if name == "broker":
            _write(folder / "broker.pem", _pem(certificate) + _key(key))
            _write(folder / "broker.key", _key(key))
            continue
        _write(folder / "client.pem", _pem(certificate))
        _write(folder / "client.key", _key(key))
        secret = serialization.BestAvailableEncryption(PASSWORD.encode())
        _write(folder / "client-secret.key", _key(key, secret))
        store = pkcs12.serialize_key_and_certificates(
            b"client", key, certificate, [ca], secret
        )
        _write(folder / "client.p12", store)


def _certificate(name, key, issuer, signer, age_days) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)  # noqa: TID251 - of real certificates
    issued = now - dt.timedelta(days=age_days)
    hosts = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address(ports.LOOPBACK)),
    ]
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(issued)
        .not_valid_after(issued + dt.timedelta(days=2))
        .add_extension(x509.BasicConstraints(issuer is None, None), critical=True)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(signer, hashes.SHA256())
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key(key, secret=None) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        secret or serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
