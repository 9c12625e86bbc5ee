"""
A webhook receiver that follows the guide and stores the rows, over real HTTP.

It checks each signature, keeps the highest position of each key, even of a deleted one,
and responds as ``docs/webhooks.md`` describes. A test may override the responses.
"""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from towpath.schemas import webhooks
from towpath.schemas.clock import SystemClock
from towpath.sinks.key_text import key_text
from towpath.sinks.ports import StoredRow

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - for tests


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of the receiver."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A received request: its id, its changes, and its headers in lower case."""

    id: str
    changes: list[dict[str, Any]]
    headers: dict[str, str]


class Receiver:
    """
    A server on this host, with the rows that it has received.

    Attributes:
        url: The address of its endpoint.
        requests: All requests, in order of arrival.
        otherwise: A function that may return a response to replace the usual one.
        secrets: The secrets that it accepts.
    """

    def __init__(self) -> None:
        self.requests: list[ReceivedRequest] = []
        self.otherwise: Callable[[ReceivedRequest], Answer | None] = lambda _: None
        self.secrets = [SECRET]
        self.events: list[dict[str, Any]] = []
        self._rows: dict[str, dict[str, StoredRow]] = {}
        self._floors: dict[str, str] = {}
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"receiver": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def rows(self, route: str) -> Iterator[StoredRow]:
        """Yield the rows of a route, as a reader of a sink does."""
        with self._lock:
            yield from list(self._rows.get(route, {}).values())

    def take(self, headers: dict[str, str], body: bytes) -> Answer:
        """Handle a request; return the response."""
        try:
            now_s = SystemClock().now().timestamp()
            webhook_id = webhooks.verify(self.secrets, headers, body, now_s)
        except webhooks.SignatureRefusedError as error:
            return Answer(401, body=str(error).encode())
        taken = ReceivedRequest(webhook_id, json.loads(body)["changes"], headers)
        with self._lock:
            self.requests.append(taken)
        answer = self.otherwise(taken)
        if answer is not None:
            return answer
        with self._lock:
            return self._keep(taken.changes)

    def _keep(self, changes: list[dict[str, Any]]) -> Answer:
        """Store all changes in a request, or none."""
        for change in changes:
            status = self._status(change)
            if status != 200:
                return Answer(status)
        for change in changes:
            self._put(change)
        return Answer(200)

    def _status(self, change: dict[str, Any]) -> int:
        if change["op"] in {"sweep", "event"}:
            return 200
        stored = self._stored(change)
        position = change["position"]
        if position < self._floors.get(change["route"], ""):
            return 409
        if stored is not None and position < stored.position:
            return 409
        is_absent = stored is None or stored.is_deleted
        return 428 if change.get("unchanged") and is_absent else 200

    def _stored(self, change: dict[str, Any]) -> StoredRow | None:
        return self._rows.get(change["route"], {}).get(key_text(change["key"]))

    def _put(self, change: dict[str, Any]) -> None:
        if change["op"] == "event":
            known = {event["id"] for event in self.events}
            self.events += [] if change["id"] in known else [change]
            return
        rows = self._rows.setdefault(change["route"], {})
        position = change["position"]
        if change["op"] == "sweep":
            before = self._floors.get(change["route"], "")
            self._floors[change["route"]] = max(before, position)
            for key in [k for k, row in rows.items() if row.position < position]:
                del rows[key]
            return
        stored = self._stored(change)
        kept = {
            name: value
            for name, value in (stored.fields if stored else {}).items()
            if name in change.get("unchanged", ())
        }
        key = key_text(change["key"])
        fields = {**kept, **change.get("row", {})}
        rows[key] = StoredRow(key, fields, position, change["op"] == "delete")


class _Server(ThreadingHTTPServer):
    """Ignores senders that close the connection before the response ends."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing."""


class _Handler(BaseHTTPRequestHandler):
    """Passes requests to the receiver."""

    protocol_version = "HTTP/1.1"
    # Otherwise, a response's second packet would wait until the first is acknowledged.
    wbufsize = -1
    disable_nagle_algorithm = True
    receiver: ClassVar[Receiver]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = self.receiver.take(headers, body)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited
        """Log nothing."""
