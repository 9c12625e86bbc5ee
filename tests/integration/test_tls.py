"""TLS to the other servers: what an address asks for is what happens, or an error."""

from urllib.parse import urlsplit

import pytest

from support.secure_kafka import write_certificates
from support.tls_proxy import tls_before
from towpath import settings
from towpath.deploy.snapshots import signals
from towpath.relay.postgres.connect import connect as connect_source
from towpath.schemas.failure import (
    RegistryRefusedError,
    TowpathError,
    UnavailableError,
)
from towpath.schemas.registry import SchemaRegistry
from towpath.sinks.targets.cache.read import CacheReader
from towpath.sinks.targets.search.read import SearchReader
from towpath.sinks.verify.progress import SourceLog
from towpath.sinks.verify.source import Source
from towpath.sinks.wait.source import PostgresSlot

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.fixture
def folder(tmp_path):
    """Provide a folder with an authority and a server's certificate."""
    write_certificates(tmp_path)
    return tmp_path


def test_a_cache_is_reached_by_tls_and_only_if_it_is_known(stack, folder):
    """
    ``rediss://`` goes by TLS to a server whose authority is named, and to no other.
    """
    port = urlsplit(stack.redis_url).port
    with tls_before(port, folder / "broker.pem") as outside:
        url = f"rediss://127.0.0.1:{outside}/0"
        known = CacheReader(f"{url}?ssl_ca_certs={folder / 'ca.pem'}", "nobody")
        rows = list(known.rows("orders"))
        known.close()
        stranger = CacheReader(url, "nobody")
        with pytest.raises(UnavailableError, match="certificate verify failed"):
            next(iter(stranger.rows("orders")), None)
        stranger.close()

    assert [] == rows


def test_an_index_is_reached_by_tls_and_only_if_it_is_known(stack, folder, monkeypatch):
    """
    ``https://`` takes the authorities of ``SSL_CERT_FILE``, and no stranger.
    """
    port = urlsplit(stack.opensearch_url).port
    with tls_before(port, folder / "broker.pem") as outside:
        url = f"https://127.0.0.1:{outside}"
        stranger = SearchReader(url)
        with pytest.raises(UnavailableError):
            next(iter(stranger.rows("nothing")), None)
        stranger.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
        known = SearchReader(url)
        rows = list(known.rows("nothing"))
        known.close()

    assert [] == rows


def test_a_registry_is_reached_by_tls_and_only_if_it_is_known(
    stack, folder, monkeypatch, unique
):
    """
    ``https://`` takes the authorities of ``REQUESTS_CA_BUNDLE``, and no stranger.
    """
    port = urlsplit(stack.registry_url).port
    path = urlsplit(stack.registry_url).path
    with tls_before(port, folder / "broker.pem") as outside:
        ids = SchemaRegistry(f"https://127.0.0.1:{outside}{path}")
        with pytest.raises(RegistryRefusedError, match="REQUESTS_CA_BUNDLE must name"):
            ids(unique, '"string"')
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(folder / "ca.pem"))
        found = ids(unique, '"string"')
        ids.close()

    assert found > 0


def test_no_connection_to_postgres_ignores_sslmode(database):
    """
    The local server has no TLS: a client that requires it is refused, everywhere.
    """
    dsn = f"{database}?sslmode=require"
    connecting = (
        lambda: connect_source(dsn),
        lambda: connect_source(dsn, replication=True),
        lambda: PostgresSlot(dsn, "none"),
        lambda: SourceLog(dsn, "towpath"),
        lambda: Source(dsn).__enter__(),
        lambda: list(signals.progress(settings.Source(dsn=dsn))),
    )
    for connect in connecting:
        with pytest.raises(TowpathError, match="SSL"):
            connect()
