"""Signals from a bare table, from Kafka or from the admin port."""

import json
from collections import deque
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPConnection
from types import SimpleNamespace

import pytest

from support.waiting import TIMEOUT_S
from towpath.relay.admin_http import (
    MAX_BODY_BYTES,
    AdminPages,
    HealthServer,
    SignalPages,
)
from towpath.relay.errors import SourceUnavailableError
from towpath.relay.publish.in_flight import DeliveryLedger
from towpath.relay.snapshot.signals import (
    ExternalSignal,
    SignalRefusal,
    SignalRejectedError,
    external_signal,
    read_document,
)
from towpath.relay.stats import Stats
from towpath.relay.stream.snapshot_runner import REFUSED, ExternalSignals
from towpath.relay.wal.messages import Column, Relation
from towpath.relay.wal.transactions import Change, Transaction
from towpath.schemas.clock import SystemClock
from towpath.schemas.envelope import Operation

BARE = Relation(
    9,
    "inventory",
    "dbz_signal",
    (Column("id", 1043), Column("type", 1043), Column("data", 1043)),
    (),
)
AS_JSON = {"content_type": "application/json"}
LOG = b'{"type": "log", "data": {}}'


@pytest.mark.parametrize(
    ("document", "signal"),
    [
        (LOG, ExternalSignal("spare", "log", "{}", "k")),
        (b'{"id": "s1", "type": "log"}', ExternalSignal("s1", "log", None, "k")),
        (b'{"type": "log", "data": "{}"}', ExternalSignal("spare", "log", "{}", "k")),
        (
            b'{"type": "log", "data": {"keys": [[1.10, 9007199254740993]]}}',
            ExternalSignal(
                "spare", "log", '{"keys": [["1.10", 9007199254740993]]}', "k"
            ),
        ),
    ],
)
def test_a_json_document_becomes_a_signal(document, signal):
    """
    Data may be an object or a string, the id may be missing, and every digit is kept.
    """
    assert signal == read_document(document, "spare", "k")


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "must be a JSON object"),
        (b"{}", "has no type"),
        (b'{"type": 7}', "type must be text"),
        (b'{"type": "log", "id": 7}', "id must be text"),
        (b'{"type": "log", "date": 7}', "unknown field 'date'"),
        (b'{"type": "log", "id": "%s"}' % (b"x" * 65), "the id has 65 characters"),
        (b'{"type": "%s"}' % (b"x" * 33), "unknown signal type"),
        (b'{"type": "snapshot-window-open"}', "unknown signal type"),
        (b'{"type": "lo\\u0000g"}', "text that Postgres cannot store"),
        (b'{"type": "log", "data": "\\ud800"}', "text that Postgres cannot store"),
        (
            b'{"type": "log", "data": "{\\"relay\\": \\"\\\\ud800\\"}"}',
            "text that Postgres cannot store",
        ),
    ],
)
def test_an_invalid_signal_is_rejected_with_its_reason(document, reason):
    """
    Every record and request is read as a signal or refused with one sentence.
    """
    with pytest.raises(SignalRejectedError) as rejection:
        read_document(document, "spare", "k")

    assert reason in str(rejection.value)


# The bare table ----------------------------------------------------------------------


class SignalStore:
    """Accepts signals, and reports them as durable when the test says so."""

    def __init__(self, refusals: deque[SignalRefusal]) -> None:
        self.refusals = refusals
        self.taken: list[ExternalSignal] = []
        self.done: list[str] = []

    def put(self, signal_id, kind, data, source) -> str | None:
        try:
            self.taken.append(external_signal(signal_id, kind, data, source))
        except SignalRejectedError as rejection:
            self.refusals.append(SignalRefusal(signal_id or "", str(rejection), source))
            return None
        return f"stored-{len(self.taken)}"

    def durable(self) -> list[str]:
        done, self.done = self.done, []
        return done


class Stream:
    """The loop's side of the bare table, over fakes."""

    def __init__(self) -> None:
        self.refusals: deque[SignalRefusal] = deque()
        self.store = SignalStore(self.refusals)
        self.ledger = DeliveryLedger(100)
        self.stats = Stats()
        self.notifications: list[dict] = []
        clock = SimpleNamespace(now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
        core = SimpleNamespace(
            ledger=self.ledger,
            stats=self.stats,
            clock=clock,
            now_us=lambda: 7_000,
            router=SimpleNamespace(place=SimpleNamespace(prefix="p")),
            publisher=SimpleNamespace(
                publish_unordered=lambda record: self.notifications.append(
                    json.loads(record.value)
                )
            ),
        )
        self.signals = ExternalSignals(core, self.store, self.refusals)

    def commit(self, *row: bytes | None, end_lsn: int = 200, **fields) -> None:
        """Stream a transaction with one change of the bare table."""
        self.ledger.begin()
        operation = fields.get("operation", Operation.CREATE)
        transaction = Transaction(5, 1, 1, 7, b"1.")
        change = Change(operation, BARE, row, None, False, transaction, 0, 1)
        self.signals.handle(change)
        self.ledger.commit(end_lsn)


@pytest.fixture
def stream() -> Stream:
    """Make the loop's side."""
    return Stream()


def test_a_signal_row_holds_its_transaction_until_it_is_stored(stream: Stream):
    """
    Nothing is confirmed before the signal is durable in the signal table.
    """
    stream.commit(b"s1", b"log", b"{}")
    stream.signals.turn()
    before = stream.ledger.acknowledged()
    stream.store.done.append("stored-1")
    stream.signals.turn()

    assert [
        ExternalSignal("s1", "log", "{}", "inventory.dbz_signal")
    ] == stream.store.taken
    assert (100, 200) == (before, stream.ledger.acknowledged())


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ((None, b"log", None), "the signal has no id"),
        ((b"s1", None, None), "the signal has no type"),
        ((b"x" * 65, b"log", None), "the id has 65 characters"),
        (
            (b"s1", b"log", b'{"relay": "\\u0000"}'),
            "text that Postgres cannot store",
        ),
    ],
)
def test_an_invalid_signal_row_is_rejected_and_holds_nothing(
    stream: Stream, row, reason
):
    """
    It is counted, and a notification reports the rejection; the stream continues.
    """
    stream.commit(*row)
    stream.signals.turn()
    [notification] = stream.notifications

    assert reason in notification["additional_data"]["reason"]
    assert ("Signal", "REJECTED") == (
        notification["aggregate_type"],
        notification["type"],
    )
    assert ({REFUSED: 1}, 200) == (stream.stats.skipped, stream.ledger.acknowledged())


def test_watermarks_and_deleted_rows_are_not_signals(stream: Stream):
    """
    Rows that mark a window, and deleted rows, are ignored.
    """
    stream.commit(b"w1", b"snapshot-window-open", b"")
    stream.commit(b"s1", b"log", None, operation=Operation.DELETE, end_lsn=300)
    stream.signals.turn()

    assert ([], [], 300) == (
        stream.store.taken,
        stream.notifications,
        stream.ledger.acknowledged(),
    )


# The admin port ----------------------------------------------------------------------


class SourceWithSnapshot:
    """A source with one snapshot."""

    def __init__(self) -> None:
        self.stored: list[ExternalSignal] = []
        self.failure: Exception | None = None

    def store(self, signal: ExternalSignal) -> None:
        if self.failure is not None:
            raise self.failure
        self.stored.append(signal)

    def signal(self, signal_id: str) -> dict | None:
        return {"id": "s1", "status": "completed"} if signal_id == "s1" else None

    def snapshots(self, snapshot_id: str | None) -> list:
        if self.failure is not None:
            raise self.failure
        if "\0" in (snapshot_id or ""):
            # The driver's error has no SQLSTATE.
            reason = "text with a zero byte"
            raise SourceUnavailableError(reason)
        return [{"snapshot_id": "s1"}] if snapshot_id in {None, "s1"} else []


def request(pages: SignalPages, method: str, path: str, body: bytes = b"", **headers):
    """Send a request to a real admin port."""
    clock = SystemClock()
    server = HealthServer(0, AdminPages(Stats(), clock, pages))
    connection = HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    fields = {name.replace("_", "-"): text for name, text in headers.items()}
    try:
        connection.request(method, path, body, fields)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()
        server.close()


def test_a_posted_signal_is_stored():
    """
    The response is 202 with the id, which is generated if missing.
    """
    source = SourceWithSnapshot()
    status, response = request(SignalPages(source), "POST", "/signals", LOG, **AS_JSON)

    assert (HTTPStatus.ACCEPTED, [response["id"]]) == (
        status,
        [signal.signal_id for signal in source.stored],
    )


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/signals", LOG, {"content_type": "text/plain"}, 415),
        ("/signals", LOG, {}, 415),
        ("/signals", LOG, {"origin": "http://a.example"}, 403),
        ("/signals", LOG, {"sec_fetch_mode": "no-cors"}, 403),
        ("/signals", LOG, {**AS_JSON, "content_length": "-1"}, 411),
        ("/signals", LOG, {**AS_JSON, "content_length": str(MAX_BODY_BYTES + 1)}, 413),
        ("/signals", LOG, {**AS_JSON, "content_length": "9" * 5_000}, 413),
        ("/metrics", LOG, {}, 404),
        ("/signals", b"{", AS_JSON, 400),
        ("/signals", b'{"type": "x"}', AS_JSON, 400),
        (
            "/signals",
            b'{"type": "execute-snapshot", "data": {}}',
            AS_JSON,
            400,
        ),
    ],
)
def test_an_invalid_post_is_refused_with_its_reason(path, body, headers, status):
    """
    Web forms, bodies without an acceptable length and invalid signals store nothing.
    """
    source = SourceWithSnapshot()
    pages = SignalPages(source)
    fields = {"content-length": str(len(body))}
    fields |= {name.replace("_", "-"): text for name, text in headers.items()}
    response = pages.refuse(path, fields) or pages.post(body)

    assert (status, []) == (response.status, source.stored)
    assert json.loads(response.body)["reason"]


def test_a_repeated_length_header_does_not_circumvent_the_limit():
    """
    The length that is checked is the one that is read.
    """
    source = SourceWithSnapshot()
    server = HealthServer(0, AdminPages(Stats(), SystemClock(), SignalPages(source)))
    connection = HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    try:
        connection.putrequest("POST", "/signals")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(MAX_BODY_BYTES + 1))
        connection.putheader("Content-Length", str(len(LOG)))
        connection.endheaders(LOG)
        status = connection.getresponse().status
    finally:
        connection.close()
        server.close()

    assert (HTTPStatus.ACCEPTED, 1) == (status, len(source.stored))


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (SignalRejectedError("this id was used"), HTTPStatus.CONFLICT),
        (SourceUnavailableError("down"), HTTPStatus.SERVICE_UNAVAILABLE),
    ],
)
def test_an_id_in_use_and_an_unavailable_source_are_errors(failure, status):
    """
    A 409 calls for a different id; after a 503, nothing was stored, so try again.
    """
    source = SourceWithSnapshot()
    source.failure = failure
    response = SignalPages(source).post(b'{"id": "s1", "type": "log"}')

    assert status == response.status


@pytest.mark.parametrize(
    ("path", "status", "expected"),
    [
        ("/signals/s1", 200, {"id": "s1", "status": "completed"}),
        ("/signals/s2", 404, {"reason": "unknown id"}),
        ("/snapshots", 200, [{"snapshot_id": "s1"}]),
        ("/snapshots/s%31?x", 200, [{"snapshot_id": "s1"}]),
        ("/snapshots/s2", 404, {"reason": "unknown id"}),
        ("/snapshots/%00", 404, {"reason": "unknown id"}),
    ],
)
def test_signals_and_snapshots_are_shown_as_json(path, status, expected):
    """
    The contents of the source's tables are served as JSON.
    """
    response = SignalPages(SourceWithSnapshot()).get(path)
    assert response is not None

    assert (status, expected) == (response.status, json.loads(response.body))


def test_the_admin_port_returns_its_documented_statuses():
    """
    A web form gets 415, and a snapshot's page lists its tables.
    """
    source = SourceWithSnapshot()
    pages = SignalPages(source)
    form, _ = request(pages, "POST", "/signals", LOG, content_type="text/plain")
    shown = request(pages, "GET", "/snapshots/s1")

    assert (415, [], (200, [{"snapshot_id": "s1"}])) == (form, source.stored, shown)


def test_pages_are_503_while_the_source_is_unavailable():
    """
    The page has the reason and its remedy; the port keeps serving.
    """
    source = SourceWithSnapshot()
    source.failure = SourceUnavailableError("no response")
    response = SignalPages(source).get("/snapshots")

    assert response is not None
    assert (503, "no response") == (
        response.status,
        json.loads(response.body)["reason"],
    )
