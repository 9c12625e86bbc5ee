"""
The admin port: ``/metrics``, ``/health/live``, ``/health/ready``, and signals.

*Live* means that the loop is running: a restart may help a process that is stuck, not
one whose source or broker is down. *Ready* means that a recent heartbeat of this
process has passed through the source's log.

==========================  ==========================================================
``POST /signals``           stores a JSON signal: ``type``, ``data`` and optionally
                            ``id``; 202 with its id, 400 with the reason, 409 for
                            an id already in use
``GET /signals/<id>``       the signal's row
``GET /snapshots``          the tables of the newest snapshots, at most 1,000
``GET /snapshots/<id>``     the tables of one snapshot, at most 1,000
==========================  ==========================================================

These four respond with 503 while the source cannot be reached. Separate threads serve
the port, so that no request blocks the loop. The port has no authentication: it listens
on this host only, unless configured otherwise, and refuses signals that a browser sends
on behalf of a web page.
"""

import json
import threading
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from towpath.relay.errors import AdminPortError
from towpath.relay.metrics import StatsCollector
from towpath.relay.snapshot.signals import (
    ExternalSignal,
    SignalRejectedError,
    is_storable,
    parse_signal,
    read_document,
)
from towpath.relay.stats import Stats
from towpath.schemas.clock import Clock
from towpath.schemas.failure import (
    TooManyFilesError,
    TowpathError,
    has_no_descriptor,
)
from towpath.schemas.page_server import PageServer

# Enough for ten thousand keys of a hundred bytes.
MAX_BODY_BYTES: Final = 1024 * 1024
# Python refuses to convert a string of thousands of digits to a number.
_MAX_DIGITS: Final = 20

_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"
_SIGNALS: Final = "/signals"
_SNAPSHOTS: Final = "/snapshots"
_SOURCE: Final = "the admin port"


class PageResponse(NamedTuple):
    """A page's response to a request."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT


class SignalService(Protocol):
    """Stores signals, and reads their rows and snapshots."""

    def store(self, signal: ExternalSignal) -> None:
        """
        Store a signal.

        Raises:
            SignalRejectedError: Another signal has its id.
            TowpathError: The source cannot be reached.
        """

    def signal(self, signal_id: str) -> Any:  # noqa: ANN401 - JSON
        """
        Return a signal's row, or None.

        Raises:
            TowpathError: The source cannot be reached.
        """

    def snapshots(self, snapshot_id: str | None) -> list[Any]:
        """
        Return the tables of one snapshot, or of the newest ones; at most 1,000.

        Raises:
            TowpathError: The source cannot be reached.
        """


class SignalPages:
    """Handles requests about signals; thread-safe."""

    def __init__(self, signals: SignalService) -> None:
        self._signals = signals

    def get(self, path: str) -> PageResponse | None:
        """Return the page at ``path``; None if there is no such page."""
        root, _, name = path.partition("?")[0][1:].partition("/")
        wanted = unquote(name)
        if not is_storable(wanted):
            return _found_response(None)
        try:
            match f"/{root}", wanted:
                case "/snapshots", "":
                    return _json_response(HTTPStatus.OK, self._signals.snapshots(None))
                case "/snapshots", snapshot_id:
                    return _found_response(self._signals.snapshots(snapshot_id))
                case "/signals", signal_id if signal_id:
                    return _found_response(self._signals.signal(signal_id))
        except TowpathError as failure:
            return _unavailable_response(failure)
        return None

    def refuse(self, path: str, headers: Mapping[str, str]) -> PageResponse | None:
        """
        Return the refusal of a POST before its body is read; None if it is accepted.

        The names in ``headers`` are in lower case.
        """
        if path.partition("?")[0] != _SIGNALS:
            return _json_response(
                HTTPStatus.NOT_FOUND, {"reason": f"send POST requests to {_SIGNALS}"}
            )
        if "origin" in headers or "sec-fetch-mode" in headers:
            return _json_response(
                HTTPStatus.FORBIDDEN, {"reason": "requests from web pages are refused"}
            )
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != _JSON:
            reason = f"send {_JSON}, and set Content-Type to it"
            return _json_response(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, {"reason": reason})
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            reason = "send the length of the body in Content-Length"
            return _json_response(HTTPStatus.LENGTH_REQUIRED, {"reason": reason})
        if len(length) > _MAX_DIGITS or int(length) > MAX_BODY_BYTES:
            reason = f"at most {MAX_BODY_BYTES} bytes are accepted"
            return _json_response(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"reason": reason}
            )
        return None

    def post(self, body: bytes) -> PageResponse:
        """Store the signal in a request's body."""
        try:
            signal = read_document(body, str(uuid.uuid4()), _SOURCE)
            parse_signal(signal.type, signal.data)
        except SignalRejectedError as rejection:
            return _json_response(HTTPStatus.BAD_REQUEST, {"reason": str(rejection)})
        try:
            self._signals.store(signal)
        except SignalRejectedError as rejection:
            document = {"id": signal.signal_id, "reason": str(rejection)}
            return _json_response(HTTPStatus.CONFLICT, document)
        except TowpathError as failure:
            return _unavailable_response(failure)
        return _json_response(HTTPStatus.ACCEPTED, {"id": signal.signal_id})


def _found_response(what: Any) -> PageResponse:  # noqa: ANN401 - JSON
    if not what:
        return _json_response(HTTPStatus.NOT_FOUND, {"reason": "unknown id"})
    return _json_response(HTTPStatus.OK, what)


def _unavailable_response(failure: TowpathError) -> PageResponse:
    document = {"reason": str(failure), "remedy": failure.remedy}
    return _json_response(HTTPStatus.SERVICE_UNAVAILABLE, document)


def _json_response(status: HTTPStatus, document: Any) -> PageResponse:  # noqa: ANN401 - JSON
    text = json.dumps(document, ensure_ascii=False, default=str)
    return PageResponse(status, f"{text}\n".encode(errors="replace"), _JSON)


LOCAL_HOST: Final = "127.0.0.1"

_PAGES: Final = (
    b"/metrics, /health/live, /health/ready, /snapshots, /snapshots/ID, /signals/ID\n"
)

# How long an idle connection may occupy a thread.
_REQUEST_TIMEOUT_S: Final = 10.0


class AdminPages:
    """The admin port's pages, independent of the server."""

    def __init__(
        self, stats: Stats, clock: Clock, signals: SignalPages | None = None
    ) -> None:
        self.signals = signals
        self._stats = stats
        self._clock = clock
        self._registry = CollectorRegistry()
        self._registry.register(StatsCollector(stats, clock))

    def get(self, path: str) -> PageResponse:
        """Return the page at ``path``; a query string is ignored."""
        match path.partition("?")[0]:
            case "/metrics":
                body = generate_latest(self._registry)
                return PageResponse(HTTPStatus.OK, body, CONTENT_TYPE_LATEST)
            case "/health/live":
                return self._live()
            case "/health/ready":
                return self._ready()
            case _:
                found = self.signals.get(path) if self.signals else None
                return found or PageResponse(HTTPStatus.NOT_FOUND, _PAGES)

    def _live(self) -> PageResponse:
        if self._stats.is_stuck(self._clock.monotonic_s()):
            return PageResponse(HTTPStatus.SERVICE_UNAVAILABLE, b"the loop is stuck\n")
        return PageResponse(HTTPStatus.OK, b"live\n")

    def _ready(self) -> PageResponse:
        reason = self._stats.unready(self._clock.monotonic_s())
        if reason is not None:
            return PageResponse(HTTPStatus.SERVICE_UNAVAILABLE, f"{reason}\n".encode())
        return PageResponse(HTTPStatus.OK, b"ready\n")


class _RequestHandler(BaseHTTPRequestHandler):
    """Reads requests, and writes the pages' responses."""

    pages: AdminPages
    timeout = _REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        self._write(self.pages.get(self.path))

    def do_POST(self) -> None:
        signals = self.pages.signals
        if signals is None:
            self._write(PageResponse(HTTPStatus.NOT_FOUND, _PAGES))
            return
        # The last value of a repeated header counts, both here and in ``refuse``.
        fields = {name.lower(): text for name, text in self.headers.items()}
        refused = signals.refuse(self.path, fields)
        if refused is not None:
            self.close_connection = True
            self._write(refused)
            return
        length = int(fields["content-length"])
        self._write(signals.post(self.rfile.read(length)))

    def _write(self, response: PageResponse) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(response.body)

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - the library's
        pass


class HealthServer:
    """Serves the admin port until it is closed."""

    def __init__(self, port: int, pages: AdminPages, host: str = LOCAL_HOST) -> None:
        """
        Listen on ``port`` of ``host``; 0 picks a free port.

        Raises:
            AdminPortError: The port is taken, or the address is not this host's.
            TooManyFilesError: The process cannot open any more files.
        """
        handler = type("Handler", (_RequestHandler,), {"pages": pages})
        try:
            self._server = PageServer(host, port, handler)
        except OSError as error:
            if has_no_descriptor(error):
                doing = "opening the admin port"
                raise TooManyFilesError(doing) from error
            reason = f"the admin port {host}:{port}: {error.strerror or error}"
            raise AdminPortError(reason) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="health", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port in use."""
        return self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
