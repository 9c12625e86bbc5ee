"""
Whether an address can be one of the server that it is meant for.

Only its form is judged; no server is asked.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from towpath.settings.kinds import SinkKind
from towpath.settings.model import Settings
from towpath.settings.rows import RecordFormat
from towpath.settings.sink import CatalogKind, Sink

_BROKER: Final = re.compile(r"[^\s,:/]+:\d{1,5}|\[[0-9A-Fa-f:]+\]:\d{1,5}")
# https://www.postgresql.org/docs/current/libpq-connect.html, "Connection Strings".
_POSTGRES: Final = ("postgresql", "postgres")
_PAIR: Final = re.compile(r"\s*\w+\s*=")
_WEB: Final = ("http", "https")
_SCHEMES: Final[Mapping[str, tuple[str, ...]]] = {
    SinkKind.CACHE: ("redis", "rediss", "unix"),
    SinkKind.SEARCH: _WEB,
    CatalogKind.JDBC: _POSTGRES,
    CatalogKind.REST: _WEB,
}


def addresses(settings: Settings) -> Iterator[str]:
    """List the addresses that no server of their kind can have."""
    dsn = settings.database.dsn.strip()
    if not dsn:
        yield "source.dsn: must not be empty"
    elif not _is_libpq(dsn):
        yield (
            "source.dsn: must be postgresql://user@host:port/database, or pairs as "
            "host=... dbname=..."
        )
    for broker in settings.kafka.bootstrap_servers.split(","):
        if not _BROKER.fullmatch(broker.strip()):
            yield f"kafka.bootstrap_servers: must be host:port, not {broker.strip()!r}"
    yield from _registry(settings)
    for sink in settings.sink:
        yield from _target(sink)


def _is_libpq(dsn: str) -> bool:
    if "://" in dsn.split("=", 1)[0]:
        return dsn.partition("://")[0] in _POSTGRES
    return _PAIR.match(dsn) is not None


def _registry(settings: Settings) -> Iterator[str]:
    url = settings.registry.url
    if url and urlsplit(url).scheme not in _WEB:
        yield "registry.url: must begin with http:// or https://"
    if not url and settings.relay.rows.format is RecordFormat.AVRO:
        yield 'registry.url: missing: relay.rows.format = "avro" needs a registry'


def _target(sink: Sink) -> Iterator[str]:
    is_warehouse = sink.kind == SinkKind.WAREHOUSE
    taken = _SCHEMES.get(sink.warehouse.catalog if is_warehouse else sink.kind, ())
    # An address that cannot be taken apart, such as one with half a bracket, is none.
    scheme = sink.url.partition("://")[0] if "://" in sink.url else ""
    if taken and scheme not in taken:
        expected = " or ".join(f"{each}://" for each in taken)
        yield f"sink.{sink.name}.url: must begin with {expected}"
