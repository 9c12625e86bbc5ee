"""The webhook sink against a real server: order, signatures, retries and refusals."""

import base64
import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.dead_letters import Letters, context_of
from support.webhook_receiver import SECRET, Answer, ReceivedRequest, Receiver
from towpath.schemas.clock import SystemClock
from towpath.settings import Route
from towpath.settings import Sink as SinkSettings
from towpath.settings.sink import WebhookOptions
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.apply.bisect import Delivery, DeliveryResult
from towpath.sinks.apply.replay import DeadLetterRequests
from towpath.sinks.change import (
    ALL_PRESENT,
    Change,
    EventRow,
    Floor,
    Origin,
    Record,
    Refusal,
)
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.entries import LATER, DeadLetterRequest, Subject, Verb
from towpath.sinks.dead_letters.parked import ParkedKeys
from towpath.sinks.errors import (
    BatchRefusedError,
    EveryChangeRefusedError,
    TargetBusyError,
    TargetUnavailableError,
    WebhookRefusedError,
)
from towpath.sinks.ports import Batch
from towpath.sinks.targets.webhook.sink import WebhookSink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

OTHER = "whsec_" + base64.b64encode(b"o" * 24).decode()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Provide a receiver for the test."""
    one = Receiver()
    yield one
    one.close()


def sink_of(url: str, **options) -> WebhookSink:
    """Make a sink that posts to an address."""
    given = {"secrets": (SECRET,), "timeout_s": 5, **options}
    return WebhookSink(url, WebhookOptions(**given), SystemClock())


@pytest.fixture
def sink(receiver: Receiver) -> Iterator[WebhookSink]:
    """Provide a sink that posts to the receiver."""
    one = sink_of(receiver.url)
    one.open()
    yield one
    one.close()


def at(number: int) -> str:
    """Return a position as text."""
    return f"{number * 8:016x}.0000000000"


def row(key: int, number: int = 1, **more) -> Change:
    """Make a change to an order."""
    given = {"row": {"order_id": key}, "unchanged": ALL_PRESENT, **more}
    origin = Origin("t", 0, key)
    return Change(
        *("orders", (key,), ("order_id",), at(number)),
        is_read=False,
        origin=origin,
        **given,
    )


def event(number: int, aggregate_id: str = "a") -> EventRow:
    """Make an event of an order."""
    return EventRow(
        *("events", f"e{number}", "order", aggregate_id, "OrderPlaced", "{}", "{}"),
        *(at(number), "2026-01-01T00:00:00.000000Z", Origin("e", 0, number)),
    )


def keys_of(requests: list[ReceivedRequest]) -> list[int]:
    """List the keys in the requests, in order of arrival."""
    return [change["key"][0] for taken in requests for change in taken.changes]


def callers(server: socket.socket) -> int:
    """Count the connections that are waiting to be accepted."""
    server.setblocking(False)
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            count += 1
    return count


def refusing(status: int, *keys: object, **headers: str):
    """Return a rule that answers requests about given keys, or all, with a status."""

    def otherwise(taken: ReceivedRequest) -> Answer | None:
        names = {one.get("event_id") or one["key"][0] for one in taken.changes}
        return Answer(status, headers) if not keys or names & set(keys) else None

    return otherwise


def test_a_delete_of_a_row_that_the_receiver_lacks_is_applied(receiver, sink):
    """Status 428 means that there is no row, so nothing needs to be deleted."""
    receiver.otherwise = refusing(428)
    sink.apply(Batch(0, (row(1, row=None),)))
    checkpoint = sink.flush()

    assert (1, ()) == (checkpoint.applied, checkpoint.refused)


def test_each_request_is_signed_with_each_secret(receiver):
    """
    A receiver with either secret accepts the requests; any other rejects them.
    """
    sink = sink_of(receiver.url, secrets=(OTHER, SECRET))
    sink.apply(Batch(0, (row(1),)))
    receiver.secrets = [OTHER]
    sink.apply(Batch(1, (row(2),)))
    receiver.secrets = ["whsec_" + base64.b64encode(b"x" * 24).decode()]
    with pytest.raises(WebhookRefusedError, match="401"):
        sink.apply(Batch(2, (row(3),)))
    sink.close()

    assert keys_of(receiver.requests) == [1, 2]


def test_a_change_has_the_same_id_in_every_request(receiver):
    """
    A receiver that stores ids recognizes a change after a restart of the sink.
    """
    for number in range(2):
        sink = sink_of(receiver.url)
        sink.apply(Batch(number, (row(1), row(2))))
        sink.close()
    ids = [taken.id for taken in receiver.requests]

    assert (4, 2) == (len(ids), len(set(ids)))


def test_several_changes_share_a_request_and_are_judged_separately(receiver):
    """
    A refused change does not prevent the others in its request from being applied.
    """
    sink = sink_of(receiver.url, changes_per_request=10)
    receiver.otherwise = refusing(422, 3)
    sink.apply(Batch(0, tuple(row(key) for key in range(1, 6))))
    checkpoint = sink.flush()
    sink.close()

    assert (4, [3], [5, 1, 1, 1, 1, 1], {"1", "2", "4", "5"}) == (
        checkpoint.applied,
        [refusal.change.key[0] for refusal in checkpoint.refused],
        [len(taken.changes) for taken in receiver.requests],
        {row.key for row in receiver.rows("orders")},
    )


def test_a_refused_change_has_the_receivers_reason(receiver, sink):
    """
    The sink does not resend the refused change; the others are applied.
    """
    receiver.otherwise = lambda taken: (
        Answer(422, body=b"no such customer") if keys_of([taken]) == [2] else None
    )
    sink.apply(Batch(0, (row(1), row(2), row(3))))
    checkpoint = sink.flush()
    reason = "the receiver returned 422: no such customer"

    assert (2, (Refusal(row(2), reason),), 3) == (
        checkpoint.applied,
        checkpoint.refused,
        len(receiver.requests),
    )


def test_a_change_that_must_wait_holds_back_no_other_key(receiver, sink):
    """
    The rest of the batch is sent; only the change that failed is retried.
    """
    fails = iter([True])

    def otherwise(taken: ReceivedRequest) -> Answer | None:
        is_bad = keys_of([taken]) == [2] and next(fails, False)
        return Answer(500) if is_bad else None

    receiver.otherwise = otherwise
    sink.apply(Batch(0, (row(1), row(2), row(3))))
    found = keys_of(receiver.requests)

    assert ([1, 2, 2, 3], 2, 3) == (sorted(found), found[-1], sink.flush().applied)


def test_a_pause_that_the_receiver_requests_is_respected(receiver):
    """
    After a few refusals nothing more is sent, and the driver learns how long to wait.
    """
    sink = sink_of(receiver.url, concurrency=1)
    receiver.otherwise = refusing(429, **{"Retry-After": "17"})
    with pytest.raises(TargetBusyError) as caught:
        sink.apply(Batch(0, tuple(row(key) for key in range(50))))
    sink.close()

    assert (17.0, 5) == (caught.value.retry_after_s, len(receiver.requests))


def test_a_receiver_that_is_down_is_not_tried_with_each_change(receiver):
    """
    After a few failures the batch is abandoned, to be retried later.
    """
    sink = sink_of(receiver.url, concurrency=1)
    receiver.otherwise = refusing(500)
    with pytest.raises(TargetUnavailableError):
        sink.apply(Batch(0, tuple(row(key) for key in range(50))))
    sink.close()

    assert len(receiver.requests) == 5


@pytest.mark.parametrize("status", [401, 403, 410])
def test_a_receiver_that_rejects_all_webhooks_halts_the_sink(receiver, sink, status):
    """
    No record becomes a dead letter, and the remedy names the settings to check.
    """
    receiver.otherwise = refusing(status)
    with pytest.raises(WebhookRefusedError, match=str(status)) as caught:
        sink.apply(Batch(0, (row(1),)))

    assert ((), True) == (sink.flush().refused, "secrets" in caught.value.remedy)


def test_no_redirect_is_followed(receiver, sink):
    """
    A signed request goes to the configured address, or nowhere.
    """
    other = Receiver()
    receiver.otherwise = refusing(307, Location=other.url)
    with pytest.raises(WebhookRefusedError, match="307"):
        sink.apply(Batch(0, (row(1),)))
    other.close()

    assert [] == other.requests


@pytest.mark.timeout(30)
def test_a_receiver_that_is_down_or_silent_is_tried_again():
    """
    A closed port or a missing response loses no change.
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/hook"
        sink = sink_of(url, timeout_s=0.2)
        with pytest.raises(TargetUnavailableError, match="does not answer"):
            sink.apply(Batch(0, (row(1),)))
        calls = callers(silent)
    with pytest.raises(TargetUnavailableError, match="does not answer"):
        sink.apply(Batch(0, (row(1),)))
    sink.close()

    assert (1, 0) == (calls, sink.flush().applied)


def test_no_more_requests_are_open_than_allowed(receiver):
    """
    Keys are sent concurrently, up to the limit.
    """
    sink = sink_of(receiver.url, concurrency=3)
    three_are_open = threading.Barrier(3)
    lock, open_count, highest = threading.Lock(), [0], [0]

    def otherwise(_: ReceivedRequest) -> None:
        with lock:
            open_count[0] += 1
            highest[0] = max(highest[0], open_count[0])
        three_are_open.wait(timeout=30)
        with lock:
            open_count[0] -= 1

    receiver.otherwise = otherwise
    sink.apply(Batch(0, tuple(row(key) for key in range(9))))
    sink.close()

    assert (9, 3) == (len(receiver.requests), highest[0])


def test_events_of_an_aggregate_are_posted_in_order(receiver):
    """
    Each event waits for the previous one, whatever their order in the batch.
    """
    sink = sink_of(receiver.url, concurrency=8)
    is_overtaken = threading.Event()

    def otherwise(taken: ReceivedRequest) -> None:
        if taken.changes[0]["event_id"] == "e1":
            is_overtaken.wait(timeout=0.3)
        else:
            is_overtaken.set()

    receiver.otherwise = otherwise
    numbers = [5, 1, 4, 2, 3]
    sink.apply(Batch(0, (), tuple(event(n) for n in numbers)))
    sink.close()

    assert ["e1", "e2", "e3", "e4", "e5"] == [e["event_id"] for e in receiver.events]


def test_events_after_a_refused_one_are_refused_with_it(receiver, sink):
    """
    No later event of the aggregate overtakes the refused one in a bisected batch.
    """
    receiver.otherwise = refusing(422, "e2")
    events = tuple(event(n) for n in (1, 2, 3, 4))
    done = Delivery(sink, SystemClock()).deliver(
        Batch(0, (row(1),), (*events, event(5, "b")))
    )

    assert ({2, 3, 4}, ["e1", "e5"], 3) == (
        {origin.offset for origin in done.refused_events},
        sorted(e["event_id"] for e in receiver.events),
        done.applied,
    )


def test_a_parked_event_is_posted_before_later_ones(receiver, sink):
    """
    Later batches wait for it; a replay posts all of them in order.
    """
    routes = Routes(
        SinkSettings(
            name="hook",
            kind="webhook",
            url=receiver.url,
            webhook={"secrets": [SECRET]},
            route=[Route(topic="e", name="events", kind="event_log")],
        )
    )
    letters, parked = Letters(), ParkedKeys()
    context = context_of(letters, parked=parked)
    writer = RecordWriter(routes, sink, context)
    receiver.otherwise = refusing(422, "e2")
    writer.write_records([record(1), record(2)], 0)
    writer.write_records([record(3), record(4, b"b")], 1)
    sent_first = [e["event_id"] for e in receiver.events]
    receiver.otherwise = lambda _: None
    letters.request(DeadLetterRequest("mend", Verb.REPLAY, Subject("e", b"a")))
    DeadLetterRequests(
        writer, letters, parked, context.repairs, SystemClock()
    ).process()
    writer.write_records([record(5)], 2)

    assert (["e1", "e4"], ["e2", "e3", "e5"]) == (
        sent_first,
        [e["event_id"] for e in receiver.events][2:],
    )


def record(number: int, aggregate_id: bytes = b"a") -> Record:
    """Make the record of an event."""
    values = {
        "id": f"e{number}",
        "aggregate_type": "order",
        "type": "OrderPlaced",
        "occurred_at": "2026-01-01T00:00:00.000000Z",
        "position": at(number),
    }
    headers = {name: text.encode() for name, text in values.items()}
    return Record(Origin("e", 0, number), aggregate_id, b"{}", headers)


def test_many_events_after_a_refused_one_do_not_mean_a_broken_receiver(receiver, sink):
    """
    The receiver refused one event, and the others were never sent.
    """
    receiver.otherwise = refusing(422, "e1")
    events = tuple(event(n) for n in range(1, 80))
    done = Delivery(sink, SystemClock()).deliver(Batch(0, (), events))

    assert (79, 0, []) == (len(done.refused_events), done.applied, receiver.events)


def test_a_receiver_that_refuses_every_event_is_broken(receiver, sink):
    """
    Events that only wait for a refused event do not count as evidence.
    """
    receiver.otherwise = refusing(422)
    events = (event(n, f"a{n // 2}") for n in range(200))
    with pytest.raises(EveryChangeRefusedError):
        Delivery(sink, SystemClock()).deliver(Batch(0, (), tuple(events)))


def test_changes_after_a_refused_sweep_are_not_sent(receiver, sink):
    """
    A receiver that cannot remove rows does not receive later changes.
    """
    floor = Floor("orders", at(5), needs_all=False, origin=Origin("t", 0, 0))
    sink.apply(Batch(0, (row(3, 1),)))
    sink.flush()
    receiver.otherwise = lambda _: Answer(400)
    with pytest.raises(BatchRefusedError, match="a sweep below"):
        sink.apply(Batch(0, (row(1, 6),), floors=(floor,)))
    receiver.otherwise = lambda _: None
    sink.apply(Batch(0, (row(1, 6), row(2, 4)), floors=(floor,)))
    checkpoint = sink.flush()

    assert ((1, 1), {"1"}) == (
        (checkpoint.applied, checkpoint.stale),
        {row.key for row in receiver.rows("orders")},
    )


def test_an_endless_response_does_not_block_the_sink(receiver, sink):
    """
    Only the status of a response counts, so a long body is not read to its end.
    """
    receiver.otherwise = lambda _: Answer(200, body=b"x" * 5_000_000)
    sink.apply(Batch(0, (row(1), row(2))))

    assert 2 == sink.flush().applied


def test_the_status_of_an_undecodable_response_counts(receiver, sink):
    """
    The connection is free for the next request.
    """
    encoded = {"content-encoding": "gzip"}
    receiver.otherwise = lambda _: Answer(200, encoded, b"not gzip" * 10_000)
    for number in range(6):
        sink.apply(Batch(number, (row(number), row(number + 10))))

    assert 12 == sink.flush().applied


def test_a_replay_uses_the_receivers_current_response(receiver, sink):
    """
    The receiver's earlier response is not mistaken for its current one.
    """
    routes = Routes(
        SinkSettings(
            name="hook",
            kind="webhook",
            url=receiver.url,
            webhook={"secrets": [SECRET]},
            route=[Route(topic="t", name="orders")],
        )
    )
    value = b'{"op": "c", "after": {"order_id": 7}}'
    headers = {"position": at(1).encode()}
    letter = Record(Origin("t", 0, 0), b'{"order_id": 7}', value, headers)
    writer = RecordWriter(routes, sink, context_of(Letters()))
    receiver.otherwise = refusing(422)
    refused = writer.replay([letter])
    receiver.otherwise = lambda _: None
    taken = writer.replay([letter])

    assert (1, 0, 1) == (
        len(refused.reasons),
        len(taken.reasons),
        taken.delivered.applied,
    )


class MovedClock:
    """A clock that a test advances; its date is the real one, for signatures."""

    def __init__(self):
        self.at_s = 0.0

    def now(self):
        """Return the real time."""
        return SystemClock().now()

    def monotonic_s(self):
        """Return the test's time."""
        return self.at_s

    def wait(self, delay_s):
        """Advance the clock at once."""
        self.at_s += delay_s


class RetryRig:
    """A sink that gives up after three attempts and a minute, by the test's clock."""

    def __init__(self, receiver: Receiver, file: Path) -> None:
        self.receiver = receiver
        self.file = file
        self.clock = MovedClock()
        self.replays = 0
        self.done = DeliveryResult()
        self.sink = self.make_sink()

    def make_sink(self, **options) -> WebhookSink:
        """Make the sink, as a new process would."""
        given = {"give_up_attempts": 3, "give_up_after_s": 60, **options}
        made = WebhookOptions(secrets=(SECRET,), timeout_s=5, **given)
        sink = WebhookSink(self.receiver.url, made, self.clock, self.file)
        sink.open()
        return sink

    def attempts(self, batch: Batch, count: int, pause_s: float = 40.0) -> int:
        """
        Replay a batch up to ``count`` times; return how often it was postponed.

        The result of the last attempt is in ``done``.
        """
        for failed in range(count):
            self.replays += 1
            again = replace(batch, batch_id=-self.replays)
            try:
                self.done = Delivery(self.sink, SystemClock()).deliver(again)
            except TargetUnavailableError:
                self.clock.at_s += pause_s
                continue
            reasons = [r.reason for r in self.done.refused]
            reasons += self.done.refused_events.values()
            if not any(reason.startswith(LATER) for reason in reasons):
                return failed
            self.clock.at_s += pause_s
        return count


@pytest.fixture
def patient(receiver, tmp_path) -> Iterator[RetryRig]:
    """Provide a sink that gives up soon."""
    one = RetryRig(receiver, tmp_path / "webhook.json")
    yield one
    one.sink.close()


def test_only_a_change_that_keeps_failing_is_abandoned(receiver, patient):
    """
    After enough attempts and time it is refused with its reason; others are accepted.
    """
    receiver.otherwise = refusing(500, 2)
    batch = Batch(0, (row(1), row(2), row(3)))
    failed = patient.attempts(batch, 9, pause_s=40)
    (refusal,) = patient.done.refused

    assert (
        2,
        (2,),
        "the receiver returned 500; gave up after 3 attempts in 80 s",
    ) == (
        failed,
        refusal.change.key,
        refusal.reason.partition(", while")[0],
    )
    assert {"1", "3"} == {one.key for one in receiver.rows("orders")}


@pytest.mark.parametrize(("count", "pause_s"), [(2, 1000.0), (20, 1.0)])
def test_neither_many_attempts_nor_a_long_time_suffices_alone(
    receiver, patient, count, pause_s
):
    """
    Two attempts in half an hour prove nothing, and neither do twenty within seconds.
    """
    receiver.otherwise = refusing(500, 2)

    assert count == patient.attempts(Batch(0, (row(1), row(2))), count, pause_s)


def test_a_receiver_that_is_down_for_all_changes_parks_nothing(receiver, patient):
    """
    However long the outage, nothing is parked: changes accepted earlier fail, too.
    """
    patient.sink.apply(Batch(0, (row(1), row(2))))
    patient.sink.flush()
    receiver.otherwise = refusing(500)
    batch = Batch(1, (row(3, 2), row(4, 2)))
    failed = patient.attempts(batch, 30)
    receiver.otherwise = lambda _: None
    patient.sink.apply(batch)
    checkpoint = patient.sink.flush()

    assert (30, 2, ()) == (failed, checkpoint.applied, checkpoint.refused)


def test_a_receiver_that_never_accepted_a_change_parks_nothing(receiver, patient):
    """
    Without a successful probe, the change cannot be blamed.
    """
    receiver.otherwise = refusing(500, 2)

    assert 30 == patient.attempts(Batch(0, (row(2),)), 30)


def test_the_health_probe_outlives_the_process(receiver, patient):
    """
    A batch with only the bad change is completed even after a restart.
    """
    patient.sink.apply(Batch(0, (row(1),)))
    patient.sink.flush()
    patient.sink.close()
    patient.sink = patient.make_sink()
    receiver.otherwise = refusing(500, 2)
    failed = patient.attempts(Batch(1, (row(2, 2),)), 30)

    assert (2, [1, 2, 1, 2, 1, 2, 1]) == (failed, keys_of(receiver.requests))


def test_changes_that_shared_a_request_with_a_bad_one_are_separated(receiver, patient):
    """
    If a request of several changes fails, each is retried alone; only one is abandoned.
    """
    patient.sink = patient.make_sink(changes_per_request=10)
    receiver.otherwise = refusing(500, 2)
    batch = Batch(0, tuple(row(key) for key in range(1, 6)))
    with pytest.raises(TargetUnavailableError):
        patient.sink.apply(batch)
    patient.sink.apply(batch)
    first = patient.sink.flush()
    patient.clock.at_s += 40
    failed = patient.attempts(batch, 9)
    (refusal,) = patient.done.refused

    assert (1, (2,), {"1", "3", "4", "5"}, 4) == (
        failed,
        refusal.change.key,
        {one.key for one in receiver.rows("orders")},
        first.applied,
    )


def test_events_after_an_abandoned_one_wait(receiver, patient):
    """
    The order of the aggregate's events is kept; a different aggregate continues.
    """
    receiver.otherwise = refusing(500, "e2")
    events = (*(event(n) for n in (1, 2, 3)), event(4, "b"))
    batch = Batch(0, (), events)
    failed = patient.attempts(batch, 9)

    assert (2, {2, 3}, {"e1", "e4"}) == (
        failed,
        {origin.offset for origin in patient.done.refused_events},
        {e["event_id"] for e in receiver.events},
    )
