"""
The admin port's pages about signals and snapshots.

==========================  ==========================================================
``POST /signals``           leaves one: JSON of ``type``, ``data``, perhaps ``id``;
                            202 and its id, 400 and why not, 409: the id is used
``GET /signals/<id>``       its row
``GET /snapshots``          the tables of all snapshots, the newest first
``GET /snapshots/<id>``     the tables of one
==========================  ==========================================================

503: the source is away. Whoever reaches the port may do all this, so a web page must
not: only ``application/json`` is taken, and nothing that a browser sends for a page.
"""

import json
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote

from towpath.relay.snapshot.left import LeftSignal, read_document
from towpath.relay.snapshot.signals import SignalRejectedError, parse_signal
from towpath.schemas.failure import TowpathError

# Ten thousand keys of a hundred bytes.
MAX_BODY_BYTES: Final = 1024 * 1024

_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"
_SIGNALS: Final = "/signals"
_SNAPSHOTS: Final = "/snapshots"
_SOURCE: Final = "the admin port"


class Answer(NamedTuple):
    """What a page says."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT


class Signals(Protocol):
    """Where signals are left, and what became of them."""

    def leave(self, signal: LeftSignal) -> None:
        """
        Leave a signal.

        Raises:
            SignalRejectedError: Another has its id.
            TowpathError: The source is away.
        """

    def signal(self, signal_id: str) -> Any:  # noqa: ANN401 - JSON
        """Return a signal's row, or None."""

    def snapshots(self, snapshot_id: str | None) -> list[Any]:
        """Return the tables of one snapshot, or of all."""


class SignalPages:
    """Answers requests about signals; from any thread."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    def get(self, path: str) -> Answer | None:
        """Return the page at ``path``; None: it is none of these."""
        root, _, name = path.partition("?")[0][1:].partition("/")
        try:
            match f"/{root}", unquote(name):
                case "/snapshots", "":
                    return _json(HTTPStatus.OK, self._signals.snapshots(None))
                case "/snapshots", snapshot_id:
                    return _found(self._signals.snapshots(snapshot_id))
                case "/signals", signal_id if signal_id:
                    return _found(self._signals.signal(signal_id))
        except TowpathError as failure:
            return _away(failure)
        return None

    def refuse(self, path: str, headers: Mapping[str, str]) -> Answer | None:
        """
        Judge a POST before its body is read; None: read it.

        Args:
            path: Where it goes.
            headers: By their names in lower case.
        """
        if path.partition("?")[0] != _SIGNALS:
            return _json(HTTPStatus.NOT_FOUND, {"reason": f"POST goes to {_SIGNALS}"})
        if "origin" in headers or "sec-fetch-mode" in headers:
            return _json(HTTPStatus.FORBIDDEN, {"reason": "not from web pages"})
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != _JSON:
            reason = f"send {_JSON}, and say so in Content-Type"
            return _json(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, {"reason": reason})
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            reason = "say in Content-Length how long the body is"
            return _json(HTTPStatus.LENGTH_REQUIRED, {"reason": reason})
        if int(length) > MAX_BODY_BYTES:
            reason = f"at most {MAX_BODY_BYTES} bytes are taken"
            return _json(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"reason": reason})
        return None

    def post(self, body: bytes) -> Answer:
        """Leave the signal that a body describes."""
        try:
            signal = read_document(body, str(uuid.uuid4()), _SOURCE)
            parse_signal(signal.type, signal.data)
        except SignalRejectedError as rejection:
            return _json(HTTPStatus.BAD_REQUEST, {"reason": str(rejection)})
        try:
            self._signals.leave(signal)
        except SignalRejectedError as rejection:
            told = {"id": signal.signal_id, "reason": str(rejection)}
            return _json(HTTPStatus.CONFLICT, told)
        except TowpathError as failure:
            return _away(failure)
        return _json(HTTPStatus.ACCEPTED, {"id": signal.signal_id})


def _found(what: Any) -> Answer:  # noqa: ANN401 - JSON
    if not what:
        return _json(HTTPStatus.NOT_FOUND, {"reason": "there is none of this id"})
    return _json(HTTPStatus.OK, what)


def _away(failure: TowpathError) -> Answer:
    told = {"reason": str(failure), "remedy": failure.remedy}
    return _json(HTTPStatus.SERVICE_UNAVAILABLE, told)


def _json(status: HTTPStatus, document: Any) -> Answer:  # noqa: ANN401 - JSON
    text = json.dumps(document, ensure_ascii=False, default=str)
    return Answer(status, f"{text}\n".encode(errors="replace"), _JSON)
