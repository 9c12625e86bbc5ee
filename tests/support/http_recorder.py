"""A server that passes HTTP calls on to another one, and keeps a list of them."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from towpath.deploy.local.ports import LOOPBACK

# What belongs to one connection only, and is not passed on.
_OWN = frozenset({"connection", "transfer-encoding", "content-length", "host"})


@contextmanager
def recorded(url: str) -> Iterator[tuple[str, set[tuple[str, str]]]]:
    """Lend an address in place of another, and the calls made: method and path."""
    target = urlsplit(url)
    calls: set[tuple[str, str]] = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            calls.add((self.command, urlsplit(self.path).path))
            length = int(self.headers.get("content-length", 0))
            body = self.rfile.read(length) if length else None
            asked = {k: v for k, v in self.headers.items() if k.lower() not in _OWN}
            inner = http.client.HTTPConnection(target.hostname or "", target.port)
            inner.request(self.command, self.path, body, asked)
            answer = inner.getresponse()
            content = answer.read()
            inner.close()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
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
