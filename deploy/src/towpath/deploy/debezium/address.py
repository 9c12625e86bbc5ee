"""
Host, user, database and TLS as one address in libpq's words.

Passwords stay out of it unless asked for: libpq takes one from ``PGPASSWORD`` as well.
"""

from typing import Final
from urllib.parse import quote, urlencode

from towpath.deploy.debezium.connector import Connector
from towpath.deploy.debezium.outcome import (
    Outcome,
    not_needed,
    not_supported,
    same,
    taken,
)
from towpath.deploy.debezium.rules import Given, boolean, whole

DSN: Final = ("source", "dsn")
PASSWORD: Final = "database.password"  # noqa: S105 - the property's name
_DEFAULT_PORT: Final = "5432"
_MAX_PORT: Final = 65_535
# Debezium's names and libpq's are the same; the key's format is not.
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
    """Return the source's address; what is not written is left to libpq."""
    user = quote(connector.get("database.user"), safe="")
    secret = connector.get(PASSWORD) if connector.includes_secrets else ""
    login = f"{user}:{quote(secret, safe='')}" if secret else user
    host = connector.get("database.hostname").strip()
    place = f"[{host}]" if ":" in host else quote(host, safe="")
    port = connector.get("database.port", default=_DEFAULT_PORT).strip()
    address = f"{place}:{port}" if _is_port(port) else place
    path = quote(connector.get("database.dbname"), safe="")
    options = _options(connector)
    tail = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"postgresql://{login + '@' if login else ''}{address}/{path}{tail}"


def part_of_dsn(given: Given, connector: Connector) -> Outcome:
    """Take a property as part of the address."""
    if not given.value:
        return not_needed("it is empty")
    if given.name == "database.port" and not _is_port(given.value.strip()):
        message = f"{given.value!r} is not a port"
        raise ValueError(message)
    if given.name == "database.sslmode" and given.value not in _SSL_MODES:
        known = ", ".join(_SSL_MODES)
        return not_supported(f"{given.value!r} is none of {known}")
    remark = ""
    if given.name == "database.sslkey":
        remark = "libpq wants the key in PEM form, not PKCS-8 DER"
    return taken({DSN: dsn(connector)}, remark)


def password(given: Given, connector: Connector) -> Outcome:
    """Keep a password out of the file unless it was asked for."""
    if not given.value:
        return not_needed("it is empty")
    if given.value.startswith("${"):
        return not_supported(
            "Kafka Connect's configuration provider fills it in; "
            "set PGPASSWORD where the relay runs, or TOWPATH_SOURCE__DSN_FILE"
        )
    if connector.includes_secrets:
        return taken({DSN: dsn(connector)})
    return not_supported(
        "a password does not belong into the file: set PGPASSWORD where the relay "
        "runs, or TOWPATH_SOURCE__DSN_FILE to a file with the whole address, or "
        "convert with --include-secrets"
    )


def key_password(given: Given, connector: Connector) -> Outcome:
    """Keep the private key's password out of the file unless it was asked for."""
    if given.value and connector.includes_secrets:
        return taken({DSN: dsn(connector)})
    return not_supported(
        "a password does not belong into the file: add sslpassword to the address in "
        "TOWPATH_SOURCE__DSN_FILE, or convert with --include-secrets"
    )


def keepalive(given: Given, connector: Connector) -> Outcome:
    """Take TCP keepalives, which are on by default in both worlds."""
    if boolean(given.value):
        return same("every connection keeps itself alive")
    return taken({DSN: dsn(connector)})


def _is_port(text: str) -> bool:
    try:
        return 0 < whole(text) <= _MAX_PORT
    except ValueError:
        return False


def _options(connector: Connector) -> dict[str, str]:
    options = {
        name: connector.get(f"database.{name}")
        for name in _TLS
        if connector.get(f"database.{name}")
    }
    if options.get("sslmode", "disable") not in _SSL_MODES:
        del options["sslmode"]
    if connector.includes_secrets and connector.get("database.sslpassword"):
        options["sslpassword"] = connector.get("database.sslpassword")
    if connector.get("database.tcpKeepAlive").strip().lower() == "false":
        options["keepalives"] = "0"
    return options
