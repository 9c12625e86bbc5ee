"""A warehouse whose REST catalog has a private CA and requires a token."""

from urllib.parse import urlsplit

import pytest

from support.driver_process import Feed, Place, driver
from support.rest_catalog import serving
from support.secure_kafka import write_certificates
from support.tls_proxy import tls_in_front_of
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.jars import fetch

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(300)]

TOKEN = "of the test"  # noqa: S105 - the server's own


class Shop(Place):
    """A table's records, and the warehouse to which a driver writes them."""

    def configure(self, url, token):
        """Write the configuration with an address and a token."""
        options = {"trigger_ms": 1000}
        name = f"{self.name}.orders"
        self.write_config(
            self.sink("warehouse", "warehouse", url, name, **options),
            f'[sink.warehouse]\ncatalog = "rest"\nlocation = "lake"\n'
            f'properties = {{ token = "{token}" }}\n',
        )


@pytest.fixture
def authority(tmp_path):
    """Provide a folder with an authority's and a server's certificates."""
    folder = tmp_path / "tls"
    folder.mkdir()
    write_certificates(folder)
    return folder


@pytest.fixture
def catalog(tmp_path, authority):
    """Provide the catalog's server behind a TLS proxy, and its address."""
    files = tmp_path / "catalog"
    files.mkdir()
    with (
        serving(files, TOKEN) as (inside, served),
        tls_in_front_of(urlsplit(inside).port, authority / "broker.pem") as port,
    ):
        yield served, f"https://127.0.0.1:{port}"


def test_both_engines_reach_a_catalog_with_tls_and_a_token(
    stack, unique, tmp_path, authority, catalog, monkeypatch
):
    """
    Java trusts the authority through a trust store, Python via ``REQUESTS_CA_BUNDLE``.

    A wrong token and an unknown authority fail, each with its own reason.
    """
    stack.up("kafka")
    served, url = catalog
    flags = fetch.trust_store_flags(authority / "ca.pem", tmp_path / "trust.p12")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", " ".join(flags))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority / "ca.pem"))
    shop = Shop(stack, unique, tmp_path)
    shop.configure(url, TOKEN)
    feed = Feed(shop)
    feed.work(300, keys=60, seed=1)
    with driver(shop):
        shop.wait_applied("warehouse")
        feed.work(300, keys=60, seed=2)
        shop.wait_applied("warehouse")
    rows = shop.contents("warehouse")
    shop.configure(url, "another")
    with pytest.raises(TargetUnavailableError, match="NotAuthorized"):
        shop.contents("warehouse")
    shop.configure(url, TOKEN)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    with pytest.raises(TargetUnavailableError, match="certificate verify failed"):
        shop.contents("warehouse")

    assert feed.rows == rows
    assert served.requests > 10
