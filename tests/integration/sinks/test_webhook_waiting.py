"""If a receiver fails for some keys, only those wait, across batches and restarts."""

import random
import threading
from collections.abc import Iterator

import pytest
import structlog

from support.dead_letters import Letters, context_of
from support.driver_process import PATIENCE_S, Feed, Place, driver
from support.waiting import until
from support.webhook_receiver import SECRET, Answer, ReceivedRequest, Receiver
from towpath.schemas.clock import SystemClock
from towpath.settings import Route
from towpath.settings import Sink as SinkSettings
from towpath.settings.sink import WebhookOptions
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.apply.replay import DeadLetterRequests
from towpath.sinks.change import Origin, Record
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.parked import OpenDeadLetters, ParkedKeys
from towpath.sinks.errors import TargetBusyError, TargetUnavailableError
from towpath.sinks.targets.webhook.sink import WebhookSink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


class WaitingClock:
    """A clock that advances with each wait; its date is the real one."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now(self):
        """Return the real time, for signatures."""
        return SystemClock().now()

    def monotonic_s(self) -> float:
        """Return the test's time."""
        return self.at_s

    def wait(self, delay_s: float) -> None:
        """Advance the clock at once."""
        self.at_s += delay_s


class HookRig:
    """A sink and its record writer, as in a driver, with the test's clock."""

    def __init__(self, receiver: Receiver, folder) -> None:
        self.receiver = receiver
        self.clock = WaitingClock()
        self.letters = Letters()
        self._folder = folder
        self._offset = 0
        self._log_lsn = 0
        self._batch_id = 0
        self.start()

    def start(self, **options) -> None:
        """Make the sink and its writer, as a new process does."""
        given = {"secrets": (SECRET,), "timeout_s": 5, **options}
        made = WebhookOptions(**given)
        sink = WebhookSink(
            self.receiver.url, made, self.clock, self._folder / "webhook.json"
        )
        sink.open()
        settings = SinkSettings(
            name="hook",
            kind="webhook",
            url=self.receiver.url,
            webhook={"secrets": [SECRET]},
            route=[
                Route(topic="t", name="orders"),
                Route(topic="e", name="events", kind="event_log"),
            ],
        )
        parked = ParkedKeys()
        parked.restore(self.letters.entries())
        context = context_of(self.letters, parked=parked)
        self.parked = parked
        self.writer = RecordWriter(Routes(settings), sink, context)
        self.requests = DeadLetterRequests(
            self.writer, self.letters, parked, context.repairs, self.clock
        )

    def row(self, key: int, status: str = "placed") -> Record:
        """Make the record of a row at the next position."""
        value = f'{{"op": "u", "after": {{"id": {key}, "status": "{status}"}}}}'
        headers = {"position": self._position()}
        origin = Origin("t", 0, self._offset)
        return Record(origin, f'{{"id": {key}}}'.encode(), value.encode(), headers)

    def event(self, aggregate_id: str) -> Record:
        """Make the record of an event at the next position."""
        values = {
            "aggregate_type": "order",
            "type": "OrderPlaced",
            "occurred_at": "2026-01-01T00:00:00.000000Z",
        }
        headers = {name: text.encode() for name, text in values.items()}
        headers["position"] = self._position()
        headers["id"] = f"e{self._offset}".encode()
        origin = Origin("e", 0, self._offset)
        return Record(origin, aggregate_id.encode(), b"{}", headers)

    def write(self, *records: Record):
        """Write one batch."""
        self._batch_id += 1
        return self.writer.write_records(records, self._batch_id)

    def retry_due(self, rounds: int = 1, pause_s: float = 70.0) -> None:
        """Advance the clock, and execute the requests and retries that are due."""
        for _ in range(rounds):
            self.clock.wait(pause_s)
            self.requests.process()

    def statuses(self) -> dict[str, str]:
        """Return the status of each row that the receiver has."""
        rows = self.receiver.rows("orders")
        return {row.key: row.fields["status"] for row in rows}

    def requests_about(self, key: int) -> int:
        """Count the requests about a key."""
        return sum(key in keys_of(taken) for taken in self.receiver.requests)

    def open_letters(self) -> list[str]:
        """Return the reasons of the open dead letters."""
        open_dead_letters = OpenDeadLetters().read(self.letters.entries())
        return [
            x.reason
            for subject in open_dead_letters.dead_letters
            for x in open_dead_letters.of(subject)
        ]

    def _position(self) -> bytes:
        self._offset += 1
        self._log_lsn += 8
        return f"{self._log_lsn:016x}.0000000000".encode()


def keys_of(taken: ReceivedRequest) -> list[object]:
    """List the keys and events of a request."""
    return [one["key"][0] if "key" in one else one["event_id"] for one in taken.changes]


def failing(*keys: object, status: int = 500, **headers: str):
    """Return a rule that answers requests about given keys with a status."""

    def otherwise(taken: ReceivedRequest) -> Answer | None:
        return Answer(status, headers) if {*keys_of(taken)} & {*keys} else None

    return otherwise


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Provide a receiver for the test."""
    one = Receiver()
    yield one
    one.close()


@pytest.fixture
def hook(receiver, tmp_path) -> HookRig:
    """Provide a sink whose receiver has already accepted a row."""
    made = HookRig(receiver, tmp_path)
    made.write(made.row(0))
    return made


@pytest.mark.parametrize("per_request", [1, 10])
def test_occasional_errors_neither_pause_the_sink_nor_park_a_key(
    receiver, hook, per_request
):
    """
    B6: despite 5 % of 429s and 500s, one call writes each batch, complete and in order.
    """
    hook.start(changes_per_request=per_request)
    rng, lock = random.Random(7), threading.Lock()  # noqa: S311 - repeatable

    def otherwise(_: ReceivedRequest) -> Answer | None:
        with lock:
            status = rng.choice((429, 500)) if rng.random() < 0.05 else 0
        return Answer(status) if status else None

    receiver.otherwise = otherwise
    for status in ("placed", "paid", "sent"):
        rows = [hook.row(key, status) for key in range(300)]
        hook.write(*rows, *(hook.event(f"a{n % 40}") for n in range(120)))
    names = [event["event_id"] for event in receiver.events]
    by_aggregate: dict[str, list[str]] = {}
    for event in receiver.events:
        by_aggregate.setdefault(event["aggregate_id"], []).append(event["position"])

    assert ({str(key): "sent" for key in range(300)}, 360, 360, []) == (
        hook.statuses(),
        len(names),
        len(set(names)),
        hook.open_letters(),
    )
    assert all(positions == sorted(positions) for positions in by_aggregate.values())


def test_a_key_that_keeps_failing_waits_alone_across_batches(receiver, hook):
    """
    All other keys are written; the key's own changes arrive later, in order.

    It is parked durably, so a restart in between changes nothing.
    """
    receiver.otherwise = failing(2, "e5")
    first = [hook.row(1), hook.row(2), hook.row(3), hook.event("a"), hook.event("b")]
    done = hook.write(*first)
    hook.write(hook.row(2, "paid"), hook.row(4, "paid"), hook.event("a"))
    waited = hook.statuses(), [event["event_id"] for event in receiver.events]
    hook.start()
    hook.retry_due()
    receiver.otherwise = lambda _: None
    hook.retry_due(2)
    hook.write(hook.row(2, "sent"))

    assert ({"0", "1", "3", "4"}, ["e6"], 2) == (
        waited[0].keys(),
        waited[1],
        done.dead_letters,
    )
    assert ("sent", ["e6", "e5", "e9"], [], 0) == (
        hook.statuses()["2"],
        [event["event_id"] for event in receiver.events],
        hook.open_letters(),
        len(hook.parked),
    )


def test_a_pause_that_is_requested_for_one_key_applies_only_to_it(receiver, hook):
    """
    Nothing else waits, and the key is not retried before its time.
    """
    receiver.otherwise = failing(2, status=429, **{"Retry-After": "200"})
    hook.write(hook.row(1), hook.row(2), hook.row(3))
    before = hook.clock.at_s
    hook.retry_due(2)
    early = hook.requests_about(2)
    receiver.otherwise = lambda _: None
    hook.retry_due(2)

    assert (True, 1, 2) == (before < 200, early, hook.requests_about(2))
    assert hook.statuses().keys() == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("status", "headers", "error"),
    [(500, {}, TargetUnavailableError), (429, {"Retry-After": "9"}, TargetBusyError)],
)
def test_a_receiver_that_fails_for_all_keys_makes_the_sink_wait(
    receiver, hook, status, headers, error
):
    """
    No dead letter is made, the longest pause is respected, and few requests are sent.
    """
    hook.start(concurrency=1)
    receiver.otherwise = lambda _: Answer(status, headers)
    before = len(receiver.requests)
    with pytest.raises(error) as caught:
        hook.write(*(hook.row(key) for key in range(1, 50)))
    sent = len(receiver.requests) - before
    receiver.otherwise = lambda _: None
    hook.write(*(hook.row(key) for key in range(1, 50)))

    assert (6, [], 50) == (sent, hook.open_letters(), len(hook.statuses()))
    assert getattr(caught.value, "retry_after_s", 9.0) == 9.0


def test_many_bad_keys_wait_while_others_are_written(receiver, hook):
    """
    A hundred consecutive failures do not mean that the receiver is down.
    """
    bad = range(100, 200)
    receiver.otherwise = failing(*bad)
    hook.write(*(hook.row(key) for key in (*bad, *range(100))))
    held = hook.statuses()
    receiver.otherwise = lambda _: None
    hook.retry_due(2)

    assert (100, 200, []) == (len(held), len(hook.statuses()), hook.open_letters())


def test_an_abandoned_key_waits_for_the_operator(receiver, hook):
    """
    Its dead letter reports that the sink gave up, and the key is not retried again.
    """
    receiver.otherwise = failing(2)
    hook.write(hook.row(2))
    (first,) = hook.open_letters()
    hook.retry_due(12)
    (last,) = hook.open_letters()
    requests = hook.requests_about(2)
    with structlog.testing.capture_logs() as logs:
        hook.retry_due(3)

    assert ("not taken for now", "gave up after 10 attempts", requests, []) == (
        first.partition(",")[0],
        last.partition("; ")[2].partition(" in ")[0],
        hook.requests_about(2),
        logs,
    )


class Partner(Place):
    """A driver with one webhook sink, whose receiver belongs to the test."""

    def prepare(self, url: str) -> None:
        """Write the configuration, and the table's first records."""
        block = self.sink("hook", "webhook", url, "orders")
        options = f'webhook = {{ secrets = ["{SECRET}"], give_up_after_s = 600 }}\n'
        self.write_config(block.replace("[[sink.route]]", options + "[[sink.route]]"))
        self.feed = Feed(self)
        self.feed.work(300, keys=60, seed=1)


@pytest.mark.spark
def test_a_driver_continues_despite_a_receivers_errors(
    stack, unique, tmp_path, receiver
):
    """
    B6: 5 % errors and one key that always fails do not pause the sink.

    The bad key waits, and is delivered automatically once the receiver works again.
    """
    stack.up("kafka")
    rig = Partner(stack, unique, tmp_path)
    rig.prepare(receiver.url)
    rng, lock = random.Random(3), threading.Lock()  # noqa: S311 - repeatable
    bad = next(iter(rig.feed.rows))
    is_repaired = threading.Event()

    def otherwise(taken: ReceivedRequest) -> Answer | None:
        with lock:
            is_bad = rng.random() < 0.05
        if is_bad or (bad in keys_of(taken) and not is_repaired.is_set()):
            return Answer(rng.choice((429, 500)))
        return None

    def statuses() -> dict[int, str | None]:
        rows = receiver.rows("orders")
        return {int(r.key): None if r.is_deleted else r.fields["status"] for r in rows}

    expected = {}
    receiver.otherwise = otherwise
    with driver(rig):
        # Before the receiver has accepted any change, the sink cannot know that it
        # works.
        rig.wait_applied("hook")
        before = rig.progress("hook").retries
        rig.feed.work(100, keys=60, seed=2)
        rig.wait_applied("hook")
        expected = {key: row[1] for key, row in rig.feed.rows.items()}
        others = {k: status for k, status in expected.items() if k != bad}
        while_waiting = {k: status for k, status in statuses().items() if k != bad}
        progress = rig.progress("hook")
        is_repaired.set()
        until(lambda: statuses() == expected, "the key arrives", timeout_s=PATIENCE_S)
        until(
            lambda: rig.progress("hook").parked == 0,
            "nothing is parked",
            timeout_s=PATIENCE_S,
        )

    assert (others, 1, before) == (while_waiting, progress.parked, progress.retries)
