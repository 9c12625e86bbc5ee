"""
The admin port: ``/metrics``, ``/health/live``, ``/health/ready``, and signals.

*Live* means that the loop turns: restarting a process that does not may help, a source
or a broker that is away is no reason to. *Ready* means that a heartbeat of this very
process went through the source's log and came back lately.

A thread of its own answers from the tally, which the loop writes, and from the source:
nothing that a visitor does can hold the loop up. ``signal_pages`` tells of signals and
snapshots, and takes signals. Only this host is listened to unless the configuration
says otherwise: the port knows no login.
"""

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from towpath.relay.errors import AdminPortError
from towpath.relay.metrics import TallyCollector
from towpath.relay.signal_pages import Answer, SignalPages
from towpath.relay.tally import Tally
from towpath.schemas.clock import Clock

LOCAL_HOST: Final = "127.0.0.1"

_TOLD: Final = (
    b"/metrics, /health/live, /health/ready, /snapshots, /snapshots/ID, /signals/ID\n"
)

# A scraper that opens a connection and says nothing holds a thread for this long.
_REQUEST_TIMEOUT_S: Final = 10.0


class Pages:
    """The admin port's pages, without the port."""

    def __init__(
        self, tally: Tally, clock: Clock, signals: SignalPages | None = None
    ) -> None:
        self.signals = signals
        self._tally = tally
        self._clock = clock
        self._registry = CollectorRegistry()
        self._registry.register(TallyCollector(tally, clock))

    def answer(self, path: str) -> Answer:
        """Return the page at ``path``; what follows a question mark is left out."""
        match path.partition("?")[0]:
            case "/metrics":
                body = generate_latest(self._registry)
                return Answer(HTTPStatus.OK, body, CONTENT_TYPE_LATEST)
            case "/health/live":
                return self._live()
            case "/health/ready":
                return self._ready()
            case _:
                found = self.signals.get(path) if self.signals else None
                return found or Answer(HTTPStatus.NOT_FOUND, _TOLD)

    def _live(self) -> Answer:
        if self._tally.is_stuck(self._clock.monotonic_s()):
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"the loop is stuck\n")
        return Answer(HTTPStatus.OK, b"live\n")

    def _ready(self) -> Answer:
        reason = self._tally.unready(self._clock.monotonic_s())
        if reason is not None:
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{reason}\n".encode())
        return Answer(HTTPStatus.OK, b"ready\n")


class _Server(ThreadingHTTPServer):
    """A server that does not print what becomes of its visitors."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    """Reads requests, and writes what the pages answer."""

    pages: Pages
    timeout = _REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        self._write(self.pages.answer(self.path))

    def do_POST(self) -> None:
        signals = self.pages.signals
        if signals is None:
            self._write(Answer(HTTPStatus.NOT_FOUND, _TOLD))
            return
        refused = signals.refuse(
            self.path, {k.lower(): v for k, v in self.headers.items()}
        )
        if refused is not None:
            self.close_connection = True
            self._write(refused)
            return
        length = int(self.headers["Content-Length"])
        self._write(signals.post(self.rfile.read(length)))

    def _write(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - the library's
        pass


class HealthServer:
    """Serves the admin port until it is closed."""

    def __init__(self, port: int, pages: Pages, host: str = LOCAL_HOST) -> None:
        """
        Listen on ``port`` of ``host``; 0 takes a free one.

        Raises:
            AdminPortError: The port is taken.
        """
        handler = type("Handler", (_Handler,), {"pages": pages})
        try:
            self._server = _Server((host, port), handler)
        except OSError as error:
            reason = f"the admin port {host}:{port}: {error.strerror or error}"
            raise AdminPortError(reason) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="health", daemon=True
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
