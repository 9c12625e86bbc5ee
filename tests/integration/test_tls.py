"""
TLS connections to servers: a connection whose URL requires TLS is encrypted or fails.
"""

from urllib.parse import urlsplit

import pytest

from support.secure_kafka import write_certificates
from support.tls_proxy import tls_in_front_of
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
    """Provide a folder with a certificate authority and a server certificate."""
    write_certificates(tmp_path)
    return tmp_path


def test_a_cache_is_reached_with_tls_only_if_its_authority_is_trusted(stack, folder):
    """
    ``rediss://`` uses TLS, and trusts the CAs that the URL names.
    """
    port = urlsplit(stack.redis_url).port
    with tls_in_front_of(port, folder / "broker.pem") as outside:
        url = f"rediss://127.0.0.1:{outside}/0"
        trusting = CacheReader(f"{url}?ssl_ca_certs={folder / 'ca.pem'}", "nobody")
        rows = list(trusting.rows("orders"))
        trusting.close()
        distrusting = CacheReader(url, "nobody")
        with pytest.raises(UnavailableError, match="certificate verify failed"):
            next(iter(distrusting.rows("orders")), None)
        distrusting.close()

    assert [] == rows


def test_an_index_is_reached_with_tls_only_if_its_authority_is_trusted(
    stack, folder, monkeypatch
):
    """
    ``https://`` trusts only the authorities in ``SSL_CERT_FILE``.
    """
    port = urlsplit(stack.opensearch_url).port
    with tls_in_front_of(port, folder / "broker.pem") as outside:
        url = f"https://127.0.0.1:{outside}"
        distrusting = SearchReader(url)
        with pytest.raises(UnavailableError):
            next(iter(distrusting.rows("nothing")), None)
        distrusting.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
        trusting = SearchReader(url)
        rows = list(trusting.rows("nothing"))
        trusting.close()

    assert [] == rows


def test_a_registry_is_reached_with_tls_only_if_its_authority_is_trusted(
    stack, folder, monkeypatch, unique
):
    """
    ``https://`` trusts only the authorities in ``REQUESTS_CA_BUNDLE``.
    """
    port = urlsplit(stack.registry_url).port
    path = urlsplit(stack.registry_url).path
    with tls_in_front_of(port, folder / "broker.pem") as outside:
        ids = SchemaRegistry(f"https://127.0.0.1:{outside}{path}")
        with pytest.raises(RegistryRefusedError, match="REQUESTS_CA_BUNDLE must name"):
            ids(unique, '"string"')
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(folder / "ca.pem"))
        found = ids(unique, '"string"')
        ids.close()

    assert found > 0


def test_no_connection_to_postgres_ignores_sslmode(database):
    """
    The local server has no TLS, so every client that requires it fails.
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
