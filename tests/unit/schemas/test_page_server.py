"""The addresses on which a process serves its own pages."""

import threading
from http.client import HTTPConnection, RemoteDisconnected
from http.server import BaseHTTPRequestHandler

import pytest

from support.waiting import TIMEOUT_S
from towpath.schemas.page_server import PageServer


class Page(BaseHTTPRequestHandler):
    """Answers each request with an empty page."""

    def do_GET(self):
        """Send the response."""
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        """Print nothing."""


def status_at(server, address):
    """Return the status of a page that is requested at an address."""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    connection = HTTPConnection(address, server.server_port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    finally:
        connection.close()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("::", "::1"),
        ("::", "127.0.0.1"),
    ],
)
def test_pages_are_served_on_ipv4_and_ipv6_addresses(host, address):
    """
    A pod of an IPv6 cluster has no IPv4 address; a name uses IPv4 if possible.
    """
    assert 204 == status_at(PageServer(host, 0, Page), address)


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1", "2001:db8::1"])
def test_an_unknown_or_foreign_host_is_refused(host):
    """
    Either raises an OSError, which the processes that serve pages report.
    """
    with pytest.raises(OSError, match=r"Cannot assign|not known|resolution"):
        PageServer(host, 0, Page)


@pytest.mark.parametrize("host", ["pages..example", f"{'a' * 64}.example"])
def test_a_name_that_no_host_can_have_is_refused(host):
    """
    The name cannot be encoded for a lookup; this is reported as the same error.
    """
    with pytest.raises(OSError, match="not the name of a host"):
        PageServer(host, 0, Page)


@pytest.mark.parametrize(("error", "reported"), [(KeyError, 1), (ConnectionError, 0)])
def test_an_exception_of_a_page_is_reported_unless_the_client_is_gone(
    error, reported, monkeypatch
):
    """
    The client sees only that the connection ends, so the process must report why.
    """
    hooked = []
    monkeypatch.setattr(threading, "excepthook", hooked.append)

    class FailingPage(Page):
        def do_GET(self):
            raise error

    with pytest.raises(RemoteDisconnected):
        status_at(PageServer("127.0.0.1", 0, FailingPage), "127.0.0.1")

    assert reported == len(hooked)
    assert all(error is each.exc_type for each in hooked)
