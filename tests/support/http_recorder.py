"""A server that passes HTTP calls on to another one, or refuses them; it lists them."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from towpath.deploy.local.ports import LOOPBACK

# What belongs to one connection only, and is not passed on.
_OWN = frozenset({"connection", "transfer-encoding", "content-length", "host"})


def _passed_on(_method: str, _path: str) -> None:
    """Pass every call on."""


@contextmanager
def recorded(
    url: str, answer: Callable[[str, str], tuple[int, bytes] | None] = _passed_on
) -> Iterator[tuple[str, set[tuple[str, str]]]]:
    """
    Provide an address in place of another, and the calls made: method and path.

    Args:
        url: The other address.
        answer: Gives the status and the body of a call that is not passed on.
    """
    target = urlsplit(url)
    calls: set[tuple[str, str]] = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
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
            inner = http.client.HTTPConnection(target.hostname or "", target.port)
            inner.request(self.command, self.path, body, headers)
            given = inner.getresponse()
            content = given.read()
            inner.close()
            self._send(given.status, given.getheaders(), content)

        def _send(self, status: int, headers: list, content: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in _OWN:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}", calls
    finally:
        server.shutdown()
        server.server_close()
