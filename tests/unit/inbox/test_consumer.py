"""The loop of a consumer, with a simulated client and database."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext

import pytest
import structlog
from confluent_kafka import KafkaError, KafkaException
from psycopg import errors
from sqlalchemy.exc import IntegrityError

from support.inbox_place import event
from towpath.inbox import AsyncConsumer, Consumer, Inbox, consumer
from towpath.inbox.effects import (
    AsyncEffects,
    EffectError,
    Effects,
    HandlerError,
    UnavailableEffectError,
)
from towpath.inbox.event import UNREADABLE
from towpath.inbox.inbox import Admission
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UnavailableError, UsageError
from towpath.schemas.transactions import SessionTypeError


class Client:
    """A Kafka client for a topic without records."""

    def __init__(self, settings):
        self.settings = settings
        self.is_closed = False
        self.polls = []

    def subscribe(self, _topics, **_callbacks):
        """Do nothing."""

    def poll(self, timeout_s):
        """Return no record."""
        self.polls.append(timeout_s)

    def close(self):
        """Leave the group."""
        self.is_closed = True


class Replaying(Inbox):
    """An inbox that endlessly replays one event."""

    def __init__(self, **given):
        super().__init__("c", decode=lambda event: event.id)
        self.event = event(decode=self.decode, **given)

    def admit_requested(self):
        """Admit the event once more."""
        return Admission(self.event)
        yield

    def postpone(self, _event):
        """Do nothing, because no other event is requested."""
        return
        yield


class Requested(Inbox):
    """An inbox whose requested events become due again after five seconds."""

    def __init__(self, clock, count):
        super().__init__("c")
        self.clock = clock
        self.due = {str(number): 0.0 for number in range(count)}

    def admit_requested(self):
        """Admit the event that is due first."""
        id_ = min(self.due, key=self.due.get, default=None)
        if id_ is None or self.due[id_] > self.clock.s:
            return None
        return Admission(event(id=id_))
        yield

    def postpone(self, event):
        """Make the event due after the others."""
        self.due[event.id] = self.clock.s + 5
        return
        yield


class PolledClock(SystemClock):
    """A clock that advances with each poll and each attempt."""

    s = 100.0

    def monotonic_s(self):
        """Return the time so far."""
        return self.s


@pytest.fixture
def clients(monkeypatch):
    """Provide the clients that consumers create."""
    made = []

    class Recorded(Client):
        def __init__(self, settings):
            super().__init__(settings)
            made.append(self)

    monkeypatch.setattr(consumer, "Client", Recorded)
    return made


def test_a_consumer_polls_and_stops_during_a_replay(clients):
    """
    Otherwise it would lose its partitions, and a stop would wait for the last event.
    """
    stop, polls = threading.Event(), []

    @contextmanager
    def begin():
        yield None

    def handle(_event, _session):
        polls.append([*clients[0].polls])
        if len(polls) == 3:
            stop.set()
        if len(polls) > 3:
            pytest.fail("the consumer continues")

    made = Consumer(Replaying(), {}, ["t"], begin=begin, handle=handle)
    made.run(stop)

    assert ([[], [0], [0, 0]], True) == (polls, clients[0].is_closed)


@pytest.mark.parametrize(
    ("attempt_s", "tried", "within_s"),
    [(0.001, 1_000, 4.0), (0.1, 20, 3.95), (8.0, 2, 19.0)],
)
@pytest.mark.usefixtures("clients")
def test_replays_of_an_unavailable_service_are_tried_in_turn(
    attempt_s, tried, within_s, monkeypatch
):
    """
    After each attempt, records get as much time as the attempt took, up to two seconds.
    """
    clock, stop, began = PolledClock(), threading.Event(), []
    inbox = Requested(clock, 1_000)

    def poll(_client, timeout_s):
        clock.s += timeout_s
        if clock.s >= PolledClock.s + within_s:
            stop.set()

    def handle(event, _session):
        began.append(event.id)
        clock.s += attempt_s
        message = "the service is down"
        raise UnavailableError(message)

    monkeypatch.setattr(Client, "poll", poll)
    made = Consumer(
        *(inbox, {}, ["t"]),
        begin=nullcontext,
        handle=handle,
        clock=clock,
    )
    with structlog.testing.capture_logs() as logged:
        made.run(stop)

    assert (tried, tried) == (len(began), len({*began}))
    assert 1 + within_s / consumer.REPLAY_INTERVAL_S >= len(logged)


def test_a_client_that_cannot_subscribe_is_closed(clients, monkeypatch):
    """
    Its regular expression may be invalid, for example; the client's threads end.
    """

    def refuse(*_arguments, **_callbacks):
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG))

    monkeypatch.setattr(Client, "subscribe", refuse)
    begin = nullcontext
    made = Consumer(Replaying(), {}, ["^("], begin=begin, handle=lambda *_: None)

    with pytest.raises(KafkaException):
        made.run(threading.Event())
    assert [True] == [client.is_closed for client in clients]


class Message:
    """A record of the topic."""

    error = headers = key = lambda _self: None
    value = topic = lambda _self: "t"
    partition = offset = lambda _self: 0
    timestamp = lambda _self: (0, 0)  # noqa: E731 - like the others


class NothingToReplay(Inbox):
    """An inbox without requested events."""

    def admit_requested(self):
        """Find no event."""
        return None
        yield


@pytest.mark.parametrize("inbox", [Inbox("c"), NothingToReplay("c")])
def test_an_unusable_session_ends_the_consumer(inbox, clients, monkeypatch):
    """
    A retry would help neither a replay nor an event.
    """
    monkeypatch.setattr(Client, "poll", lambda *_: Message())
    made = Consumer(
        *(inbox, {}, ["t"]),
        begin=lambda: nullcontext(object()),
        handle=lambda *_: None,
    )

    with pytest.raises(SessionTypeError):
        made.run(threading.Event())
    assert [True] == [client.is_closed for client in clients]


@pytest.mark.parametrize("made", [Consumer, AsyncConsumer])
def test_an_empty_group_is_refused(made):
    """
    Otherwise the client would abort the process.
    """
    with pytest.raises(UsageError, match="must not be empty"):
        made(Replaying(), {"group.id": ""}, ["t"], begin=nullcontext, handle=print)


def test_settings_that_the_guarantees_need_are_fixed(clients):
    """
    The caller may choose all others, including the group and the first offset.
    """
    fixed = {
        "isolation.level": "read_committed",
        "partition.assignment.strategy": "cooperative-sticky",
        "enable.auto.commit": True,
        "enable.auto.offset.store": False,
    }
    chosen = {"group.id": "prefix-c", "auto.offset.reset": "latest"}
    stop = threading.Event()
    stop.set()
    made = Consumer(
        *(Replaying(), dict.fromkeys(fixed, "x") | chosen, ["t"]),
        begin=contextmanager(lambda: iter([None])),
        handle=lambda _event, _session: None,
    )
    made.run(stop)

    assert fixed | chosen == clients[0].settings


def test_a_consumer_occupies_no_thread_of_the_event_loops_executor(clients):
    """
    Handlers and decoders need these threads, which are few on a small machine.
    """
    handled = []

    @asynccontextmanager
    async def begin():
        yield None

    async def work():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        stop = asyncio.Event()

        async def handle(event, _session):
            handled.append(event.payload)
            stop.set()

        made = AsyncConsumer(Replaying(), {}, ["t"], begin=begin, handle=handle)
        await made.run_async(stop)

    asyncio.run(work())

    assert ({"1"}, True) == ({*handled}, clients[0].is_closed)


def replayed_async(inbox, handled):
    """Replay the next event with an asynchronous handler."""

    async def handle(event, _session):
        handled.append(event)

    effects = AsyncEffects(inbox, nullcontext, handle)
    asyncio.run(effects.in_thread(effects.replay_next))


def replayed(inbox, handled):
    """Replay the next event."""
    effects = Effects(inbox, nullcontext, lambda event, _session: handled.append(event))
    effects.replay_next()


@pytest.mark.parametrize("replay", [replayed, replayed_async])
def test_a_replay_of_an_event_with_unreadable_headers_fails(replay):
    """
    Its handler would get an event without a type, and might ignore it.
    """
    inbox, handled = Replaying(headers={UNREADABLE: ""}), []

    with pytest.raises(HandlerError, match=r"^ValueError: the name of a header"):
        replay(inbox, handled)

    assert [] == handled


def own_cause():
    """Return an error that is its own cause."""
    error = ValueError("no such account")
    error.__cause__ = error
    return error


def lost(cause):
    """Return a driver's error that hides the server's error behind its own."""
    error = ConnectionError("the connection is closed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (errors.AdminShutdown(), UnavailableEffectError),
        (lost(errors.AdminShutdown()), UnavailableEffectError),
        (lost(None), HandlerError),
        (errors.IdleInTransactionSessionTimeout(), HandlerError),
        (own_cause(), HandlerError),
    ],
    ids=["shutdown", "wrapped", "unknown", "idle", "its own cause"],
)
def test_a_lost_connection_counts_against_the_event_unless_the_server_ended_it(
    error, raised
):
    """
    A handler that is idle for too long loses its connection in each attempt.
    """

    def handle(_event, _session):
        raise error

    with pytest.raises(raised):
        Effects(Replaying(), nullcontext, handle).replay_next()


class Session:
    """A psycopg2 session and its cursor, on a server with the given start time."""

    __module__ = "psycopg2.extensions"
    autocommit = False
    description = True

    def __init__(self, start):
        self.start = start

    def get_transaction_status(self):
        """Return libpq's number for an open transaction."""
        return 2

    def cursor(self):
        """Return a cursor."""
        return nullcontext(self)

    def execute(self, _sql, _parameters):
        """Do nothing."""

    def fetchall(self):
        """Return the row of the only query."""
        return [(self.start,)]


class AsyncSession(Session):
    """An asynchronous psycopg session and its cursor."""

    __module__ = "psycopg"

    async def execute(self, _sql, _parameters):
        """Return the cursor."""
        return self

    async def fetchall(self):
        """Return the row of the only query."""
        return [(self.start,)]


class Ending(Inbox):
    """The inbox of a server that ends the session of each handler."""

    def __init__(self):
        super().__init__("c")
        self.start = self.next_start = "0"

    def admit(self, event):
        """Admit an event."""
        return Admission(event)
        yield

    @contextmanager
    def begin(self):
        """Begin a transaction, unless the server is down."""
        if self.start is None:
            raise errors.CannotConnectNow
        yield Session(self.start)

    @asynccontextmanager
    async def begin_async(self):
        """Begin a transaction of an asynchronous session."""
        with self.begin() as session:
            yield AsyncSession(session.start)

    def handle(self, _event, _session):
        """Lose the session; the server may have restarted afterwards."""
        self.start = self.next_start
        message = "ended"
        raise errors.AdminShutdown(message)

    async def handle_async(self, event, session):
        """Lose the session in an event loop."""
        self.handle(event, session)


def applying(inbox):
    """Return a function that applies events."""
    return Effects(inbox, inbox.begin, inbox.handle).apply


def applying_async(inbox):
    """Return a function that applies events in an event loop."""
    effects = AsyncEffects(inbox, inbox.begin_async, inbox.handle_async)
    return lambda event: asyncio.run(effects.in_thread(lambda: effects.apply(event)))


@pytest.mark.parametrize("kind", [applying, applying_async])
@pytest.mark.parametrize(
    ("starts", "are_counted"),
    [
        ([1, 1, 1], [False, True, True]),
        ([1, 2, 2], [False, False, True]),
        ([1, None, 1], [False, False, True]),
    ],
    ids=["same", "restarted", "down"],
)
def test_a_session_ended_repeatedly_by_the_same_server_counts(
    kind, starts, are_counted
):
    """
    In each attempt, a watchdog may end the session of a handler that is too slow.
    """
    inbox, counted = Ending(), []
    apply = kind(inbox)
    for inbox.next_start in starts:
        inbox.start = "0"
        with pytest.raises(EffectError, match=r"^AdminShutdown: ended$") as failed:
            apply(event())
        counted.append(isinstance(failed.value, HandlerError))

    assert are_counted == counted


def test_the_reason_of_a_failed_statement_contains_no_row_values():
    """
    The application's engine may lack ``hide_parameters``.
    """
    refused = "null value in column\nDETAIL:  Failing row contains (secret).\n"
    error = IntegrityError("insert into t", {"a": "secret"}, ValueError(refused))

    reason = str(HandlerError(event(), error))

    assert "IntegrityError: (builtins.ValueError) null value in column" == reason
