"""A server that records HTTP calls, and forwards each or answers it itself."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from towpath.deploy.local.ports import LOOPBACK

# Headers that belong to one connection only, and are not forwarded.
_OWN = frozenset({"connection", "transfer-encoding", "content-length", "host"})


def _forward_all(_method: str, _path: str) -> None:
    """Forward every call."""


@contextmanager
def recorded(
    url: str, answer: Callable[[str, str], tuple[int, bytes] | None] = _forward_all
) -> Iterator[tuple[str, set[tuple[str, str]]]]:
    """
    Provide an address that stands in for another, and the calls: method and path.

    Args:
        url: The address to which calls are forwarded.
        answer: Returns the status and body for a call that is not to be forwarded.
    """
    target = urlsplit(url)
    calls: set[tuple[str, str]] = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            path = urlsplit(self.path).path
            calls.add((self.command, path))
            length = int(self.headers.get("content-length", 0))
            body = self.rfile.read(length) if length else None
            own = answer(self.command, path)
            if own is not None:
                status, content = own
                self._send(status, [("content-type", "application/json")], content)
                return
            headers = {k: v for k, v in self.headers.items() if k.lower() not in _OWN}
            upstream = http.client.HTTPConnection(target.hostname or "", target.port)
            upstream.request(self.command, self.path, body, headers)
            response = upstream.getresponse()
            content = response.read()
            upstream.close()
            self._send(response.status, response.getheaders(), content)

        def _send(self, status: int, headers: list, content: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in _OWN:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}", calls
    finally:
        server.shutdown()
        server.server_close()
