"""The registration of event schemas at an address without a registry."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import (
    RegistryRefusedError,
    RegistryUnavailableError,
    UsageError,
)
from towpath.services.orders.events import shop_schemas
from towpath.services.registry import register_event_schemas


def register(url: str) -> None:
    """Register the schemas of the orders service, without a second attempt."""
    schemas = shop_schemas().history
    register_event_schemas(url, schemas, clock=SystemClock(), timeout_s=0)


@pytest.mark.parametrize(
    "url", ["", "localhost:8081", "http://me:secret@registry:port", "http://[::1"]
)
def test_an_address_that_is_not_a_url_gives_one_error(url: str):
    """
    The error contains no part of the address, which may include a password.
    """
    with pytest.raises(UsageError) as refused:
        register(url)

    assert "--registry is not a URL such as http://localhost:8081" == str(refused.value)


class _Page(BaseHTTPRequestHandler):
    """Responds to each request with a page, as a console at a wrong port does."""

    status = 200

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *_arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def page() -> Iterator[str]:
    """Serve pages; return the address."""
    with HTTPServer(("127.0.0.1", 0), _Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_response_that_is_not_json_is_not_from_a_registry(page: str):
    """
    The remedy names the option with the URL.
    """
    with pytest.raises(RegistryUnavailableError, match="not JSON") as unavailable:
        register(page)

    assert "that [registry] url, or --registry, points" in unavailable.value.remedy


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_login_is_not_retried(status: int, page: str, monkeypatch):
    """
    Otherwise a start would take a minute to report the first response.
    """
    monkeypatch.setattr(_Page, "status", status)
    with pytest.raises(RegistryRefusedError, match=str(status)) as refused:
        register_event_schemas(
            page, shop_schemas().history, clock=NoWait(), timeout_s=60
        )

    assert "--registry" in refused.value.remedy


class NoWait(SystemClock):
    """A clock on which a wait fails the test."""

    def wait(self, delay_s):
        """Fail, because nothing may be retried."""
        raise AssertionError(delay_s)
