"""
The port of a driver's ``/metrics``, for Prometheus and for people.

A thread of its own answers: nothing that a visitor does holds a batch up. Only this
host is listened to unless the configuration says otherwise: the port knows no login.
"""

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import unquote

from prometheus_client import CONTENT_TYPE_LATEST

from towpath.sinks.errors import MetricsPortError
from towpath.sinks.progress import PROGRESS_PAGE

# A scraper that opens a connection and says nothing holds a thread for this long.
_REQUEST_TIMEOUT_S: Final = 10.0


class _Server(ThreadingHTTPServer):
    """A server that does not print what becomes of its visitors."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    """Gives the metrics, and the progress of one sink."""

    page: Callable[[], bytes]
    progress: Callable[[str], bytes | None]
    timeout = _REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        kind, body = self._answer(self.path.partition("?")[0])
        is_known = body is not None
        body = body if body is not None else b"/metrics\n"
        self.send_response(HTTPStatus.OK if is_known else HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, path: str) -> tuple[str, bytes | None]:
        if path == "/metrics":
            return CONTENT_TYPE_LATEST, type(self).page()
        if path.startswith(PROGRESS_PAGE):
            sink = unquote(path.removeprefix(PROGRESS_PAGE))
            return "application/json", type(self).progress(sink)
        return "text/plain; charset=utf-8", None

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - the library's
        pass


class MetricsPort:
    """Serves the page until it is closed."""

    def __init__(
        self,
        host: str,
        port: int,
        page: Callable[[], bytes],
        progress: Callable[[str], bytes | None],
    ) -> None:
        """
        Listen on ``port`` of ``host``; 0 takes a free one.

        Raises:
            MetricsPortError: The port is taken, or the host is not this one.
        """
        pages = {"page": staticmethod(page), "progress": staticmethod(progress)}
        handler = type("Handler", (_Handler,), pages)
        try:
            self._server = _Server((host, port), handler)
        except OSError as error:
            reason = f"the metrics port {host}:{port}: {error.strerror or error}"
            raise MetricsPortError(reason) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
