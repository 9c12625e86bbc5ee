"""
The inbox: the ids of applied events, and the events that are parked.

Two tables in the consumer's own database hold them::

    towpath.inbox         consumer, event_id, topic, partition, offset, applied_at
    towpath.inbox_parked  the first five, and key, value, headers, reason, number,
                          parked_at, requested_at

These rules hold across processes:

1. The id of an event is inserted in the transaction of its effect. A second delivery
   waits at the unique index for the first delivery's transaction, and has no effect if
   that transaction commits.
2. A consumer takes the records of a partition in order and begins at the committed
   offset, which is never beyond an event that is not handled yet. So a process that has
   lost the partition but is still running cannot overtake the next owner, which
   encounters the same ids first.
3. The id of a parked event is inserted in the transaction that parks it. As long as an
   event of a key is parked, later events of that key are parked behind it, under a lock
   on the key.
4. A key's parked events are replayed oldest first. Each is deleted in the transaction
   of its effect, under the lock of the key.

Synchronous and asynchronous sessions run the same steps: a step yields a statement and
receives its rows.
"""

# ruff: noqa: S608 - names are quoted here; values are parameters
import base64
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from towpath.inbox.event import Decode, Event, storable, stored_id, whole_id
from towpath.inbox.tables import SCHEMA, start_of
from towpath.schemas.failure import UsageError
from towpath.schemas.table_name import quoted
from towpath.schemas.transactions import TEXT, Statement, Steps, drive, drive_async

BEHIND: Final = "an earlier event of its key is parked"
# The longest reason that is stored; an error's text can be longer.
_REASON_CHARACTERS: Final = 2_000
# How long a requested replay waits if a service that its event needs is down.
_PAUSE: Final = "interval '5 seconds'"
# The values of a row in the table of ids.
_ID: Final = ":consumer, :id, :topic, :partition, :offset"
# Conditions: a parked event has an event's key; two parked events have the same key.
_ITS_KEY: Final = (
    f"topic = :topic and key = :key and {start_of('key')} = {start_of(':key')}"
)
_SAME_KEY: Final = (
    f"q.topic = p.topic and q.key = p.key and {start_of('q.key')} = {start_of('p.key')}"
)


class ParkedEvent(NamedTuple):
    """
    A parked event.

    Attributes:
        event: The event.
        reason: Why it is parked.
        parked_at: When it was parked.
        is_requested: Whether a replay is requested.
    """

    event: Event
    reason: str
    parked_at: datetime
    is_requested: bool


class Admission(NamedTuple):
    """
    The decision about an event, made in the transaction of its effect.

    Attributes:
        event: The event to be handled now; None if it was handled before.
    """

    event: Event | None


class Inbox:
    """The inbox of one consumer, whose name all its processes share."""

    def __init__(
        self, consumer: str, *, schema: str = SCHEMA, decode: Decode | None = None
    ) -> None:
        """
        Create the inbox; no connection is opened.

        Args:
            consumer: The consumer's name, which is also its default Kafka group.
            schema: The schema of the tables.
            decode: A function, such as an ``AvroDecoder``, that returns an event's
                payload; without it, payloads are JSON.

        Raises:
            UsageError: The consumer's name is empty.
        """
        # Kafka's client aborts the process if the name of a group is empty.
        if not consumer:
            message = "the name of an inbox's consumer must not be empty"
            raise UsageError(message)
        self.consumer = consumer
        self.decode = decode
        self._applied = f"{quoted(schema)}.inbox"
        self._parked = f"{quoted(schema)}.inbox_parked"

    # Effects -----------------------------------------------------------------

    @contextmanager
    def once(self, session: Any, event: Event) -> Iterator[bool]:  # noqa: ANN401 - any driver
        """
        Insert the event's id in the session's transaction; yield whether it is new.

        If it is, the caller writes the effect inside the block, and commits both.

        Raises:
            UsageError: The session cannot be used, or has no transaction.
        """
        yield drive(session, self.take(event))

    @asynccontextmanager
    async def once_async(self, session: Any, event: Event) -> Any:  # noqa: ANN401 - any driver
        """Do the same as ``once``, in the transaction of an asynchronous session."""
        yield await drive_async(session, self.take(event))

    def handler(
        self, begin: Callable[[], AbstractContextManager[Any]]
    ) -> Callable[[Callable[[Event, Any], object]], Callable[[Event], bool]]:
        """
        Make a handler that applies an event once, in its own transaction.

        Args:
            begin: Returns a context manager that yields a session with a transaction,
                commits at its end, and rolls back after an error. An example is
                ``sessionmaker.begin``.

        Returns:
            A decorator for ``handle(event, session)``. The decorated function takes the
            event alone, and returns whether this call applied it.
        """

        def decorate(
            handle: Callable[[Event, Any], object],
        ) -> Callable[[Event], bool]:
            def apply(event: Event) -> bool:
                with begin() as session, self.once(session, event) as is_new:
                    if is_new:
                        handle(event, session)
                    return is_new

            return apply

        return decorate

    # Parked events -----------------------------------------------------------

    def parked(self, session: Any, *, limit: int = 1_000) -> list[ParkedEvent]:  # noqa: ANN401
        """Return the ``limit`` events that were parked first, in that order."""
        return drive(session, self.list_parked(limit))

    def request_replay(self, session: Any, event_id: str | None = None) -> int:  # noqa: ANN401
        """
        Request a replay of all parked events, or of one event's key; return how many.

        A running consumer replays them in order; an event that fails ends the replay of
        its key.
        """
        return drive(session, self.request(event_id))

    def discard(self, session: Any, event_id: str) -> bool:  # noqa: ANN401
        """
        Drop one parked event for good; return whether it was parked.

        Its followers stay parked until a replay is requested.
        """
        return drive(session, self.drop(event_id))

    def prune(self, session: Any, below: Mapping[tuple[str, int], int]) -> int:  # noqa: ANN401
        """
        Delete the ids of events that cannot be delivered again; return how many.

        Args:
            session: A session with a transaction.
            below: For each topic and partition, the offset below which no record can be
                read again, such as the first offset that retention has kept.
        """
        return drive(session, self.delete_below(below))

    # Steps -------------------------------------------------------------------

    def take(self, event: Event) -> Steps[bool]:
        """Insert an event's id; return whether it is new."""
        found = yield self._of(
            event,
            f"{self._insert_id()} values ({_ID})"
            " on conflict do nothing returning event_id",
        )
        if not found:
            yield self._advance_offset(event)
        return bool(found)

    def has_parked(self, event: Event) -> Steps[bool]:
        """Return whether an event of the same key is parked."""
        if event.key is None:
            return False
        found = yield self._of(event, f"{self._select_same_key()} limit 1")
        return bool(found)

    def admit(self, event: Event) -> Steps[Admission | None]:
        """Admit an event and insert its id; None if an event of its key is parked."""
        # For nearly every event, which is new and has no parked event of its key, one
        # statement is enough.
        found = yield self._of(
            event,
            f"{self._insert_id()} select {_ID}"
            f" where not exists ({self._select_same_key()})"
            " on conflict do nothing returning event_id",
        )
        if found:
            return Admission(event)
        if (yield from self.has_parked(event)):
            return None
        is_new = yield from self.take(event)
        return Admission(event if is_new else None)

    def admit_requested(self) -> Steps[Admission | None]:
        """Admit and unpark the next event to be replayed; None if there is none."""
        event = yield from self.next_requested()
        if event is None:
            return None
        was_parked = yield from self.leave(event)
        return Admission(event if was_parked else None)

    def park(self, event: Event, reason: str) -> Steps[bool]:
        """
        Park an event unless it was handled; return whether it was parked.

        A follower joins a replay of its key that is already requested.
        """
        yield self._lock(event)
        is_new = yield from self.take(event)
        if is_new:
            yield self._insert_parked(event, reason)
        return is_new

    def park_behind(self, event: Event) -> Steps[bool | None]:
        """
        Park an event unless it was handled; None if no event of its key is parked.

        A replay takes the same lock, so no follower is parked after the last parked
        event of its key has been removed.
        """
        yield self._lock(event)
        if not (yield from self.has_parked(event)):
            return None
        return (yield from self.park(event, BEHIND))

    def list_parked(self, limit: int) -> Steps[list[ParkedEvent]]:
        """Return the first ``limit`` parked events."""
        rows = yield self._fill(
            f"{self._select_parked()} where consumer = :consumer"
            " order by number limit cast(:limit as int)",
            limit=str(limit),
        )
        return [self._parked_event(row) for row in rows]

    def count_parked(self) -> Steps[int]:
        """Return how many events are parked."""
        rows = yield self._fill(
            f"select count(*) from {self._parked} where consumer = :consumer"
        )
        return int(next(iter(rows[0])))

    def next_requested(self) -> Steps[Event | None]:
        """Return the oldest parked event of the key whose replay is due first."""
        rows = yield self._fill(
            f"{self._select_parked()} p where consumer = :consumer"
            " and requested_at <= now() and not exists ("
            f"select 1 from {self._parked} q where q.consumer = p.consumer"
            f" and {_SAME_KEY}"
            " and q.number < p.number)"
            " order by requested_at, number limit 1",
        )
        return self._parked_event(rows[0]).event if rows else None

    def postpone(self, event: Event) -> Steps[None]:
        """Postpone the requested replay of an event's key, so that others can run."""
        yield self._of(
            event,
            f"update {self._parked} set requested_at = clock_timestamp() + {_PAUSE}"
            " where consumer = :consumer and event_id = :id"
            " and requested_at is not null",
        )

    def leave(self, event: Event) -> Steps[bool]:
        """Delete a parked event under its key's lock; return whether it was there."""
        yield self._lock(event)
        found = yield self._of(
            event,
            f"delete from {self._parked} where consumer = :consumer"
            " and event_id = :id returning 1",
        )
        return bool(found)

    def fail(self, event: Event, reason: str) -> Steps[None]:
        """Record why a replay failed; the replay of its key is no longer requested."""
        yield self._lock(event)
        yield self._of(
            event,
            f"update {self._parked} set requested_at = null,"
            " reason = case when event_id = :id then :reason else reason end"
            f" where consumer = :consumer and (event_id = :id or {_ITS_KEY})",
            reason=storable(reason)[:_REASON_CHARACTERS],
        )

    def request(self, event_id: str | None) -> Steps[int]:
        """Request the replay of all parked events, or of those of one event's key."""
        ((count,),) = yield self._fill(
            f"with requested as (update {self._parked} p set requested_at = now()"
            " where p.consumer = :consumer"
            " and (:event is null or p.event_id = :event or exists ("
            f"select 1 from {self._parked} q where q.consumer = p.consumer"
            f" and q.event_id = :event and {_SAME_KEY}))"
            " returning 1) select count(*) from requested",
            event=None if event_id is None else stored_id(event_id),
        )
        return int(count)

    def drop(self, event_id: str) -> Steps[bool]:
        """Delete a parked event for good."""
        rows = yield self._fill(
            f"delete from {self._parked} where consumer = :consumer"
            " and event_id = :event returning 1",
            event=stored_id(event_id),
        )
        return bool(rows)

    def delete_below(self, below: Mapping[tuple[str, int], int]) -> Steps[int]:
        """Delete ids below each partition's offset, except those of parked events."""
        count = 0
        for (topic, partition), offset in below.items():
            ((deleted,),) = yield self._fill(
                "with deleted as ("
                f"delete from {self._applied} a where consumer = :consumer"
                " and topic = :topic and partition = :partition"
                ' and "offset" < :offset and not exists ('
                f"select 1 from {self._parked} p where p.consumer = a.consumer"
                " and p.event_id = a.event_id) returning 1)"
                " select count(*) from deleted",
                topic=topic,
                partition=str(partition),
                offset=str(offset),
            )
            count += int(deleted)
        return count

    def _insert_id(self) -> str:
        columns = 'consumer, event_id, topic, partition, "offset"'
        return f"insert into {self._applied} ({columns})"

    def _select_same_key(self) -> str:
        return f"select 1 from {self._parked} where consumer = :consumer and {_ITS_KEY}"

    def _insert_parked(self, event: Event, reason: str) -> Statement:
        value = event.value
        return self._of(
            event,
            f"insert into {self._parked} (consumer, topic, partition,"
            ' "offset", event_id, key, value, headers, reason, requested_at) select'
            " :consumer, :topic, :partition, :offset, :id, :key,"
            " decode(:value, 'base64'), cast(:headers as json), :reason,"
            f" (select max(requested_at) from {self._parked} where"
            f" consumer = :consumer and {_ITS_KEY})",
            value=None if value is None else base64.b64encode(value).decode(),
            headers=json.dumps(
                {storable(n): storable(v) for n, v in event.headers.items()}
            ),
            reason=storable(reason)[:_REASON_CHARACTERS],
        )

    def _advance_offset(self, event: Event) -> Statement:
        """
        Return the statement that keeps an id while the event's last copy can be read.

        A copy in another partition, which has its own offsets, keeps the id for good.
        """
        return self._of(
            event,
            f'update {self._applied} set "offset" = greatest("offset", :offset),'
            " partition = case when partition = :partition then partition else -1 end"
            " where consumer = :consumer and event_id = :id"
            ' and (partition <> :partition or "offset" < :offset)',
        )

    def _lock(self, event: Event) -> Statement:
        """Return the statement that locks a key until the transaction ends."""
        # The key has the form in which a replay reads it from the table.
        name = stored_id(event.id) if event.key is None else storable(event.key)
        text = f"{self.consumer}\0{event.topic}\0{name}"
        digest = hashlib.sha256(text.encode(errors="surrogateescape")).digest()
        number = int.from_bytes(digest[:8], signed=True)
        return self._fill(
            "select pg_advisory_xact_lock(cast(:number as bigint))", number=str(number)
        )

    def _select_parked(self) -> str:
        return (
            'select event_id, key, value, headers, topic, partition, "offset",'
            f" reason, parked_at, requested_at is not null from {self._parked}"
        )

    def _parked_event(self, row: Iterable[Any]) -> ParkedEvent:
        id_, key, value, given, topic, partition, offset, reason, at, requested = row
        if isinstance(given, str):
            given = json.loads(given)
        event = Event(
            id=whole_id(id_, given),
            type=given.get("type", ""),
            aggregate_type=given.get("aggregate_type", ""),
            key=key,
            value=None if value is None else bytes(value),
            headers=MappingProxyType(given),
            topic=topic,
            partition=partition,
            offset=offset,
            decode=self.decode,
        )
        return ParkedEvent(event, reason, at, requested)

    def _of(self, event: Event, sql: str, **more: str | None) -> Statement:
        """Fill a statement with the consumer, an event's identity, and other values."""
        return self._fill(
            sql,
            id=stored_id(event.id),
            topic=event.topic,
            partition=str(event.partition),
            offset=str(event.offset),
            key=None if event.key is None else storable(event.key),
            **more,
        )

    def _fill(self, sql: str, **values: str | None) -> Statement:
        """Fill a statement, in which ``:name`` stands for a parameter."""
        given = {"consumer": self.consumer, **values}
        marked, names = _mark(sql)
        # Some drivers bind by position, so each occurrence is a separate parameter.
        places = {f"{name}_{n}": given[name] for n, name in enumerate(names)}
        return Statement.of(marked, places)


# A parameter, or a quoted name, which is left unchanged.
_PARAMETER: Final = re.compile(r'"[^"]*"|:([a-z]+)')
_CASTS: Final[Mapping[str, str]] = MappingProxyType(
    {"partition": "int", "offset": "bigint"}
)


@functools.cache
def _mark(sql: str) -> tuple[str, tuple[str, ...]]:
    """Replace a statement's parameters with placeholders; return it and their names."""
    names: list[str] = []

    def parameter(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0]
        names.append(name)
        return f"cast({TEXT} as {_CASTS[name]})" if name in _CASTS else TEXT

    return _PARAMETER.sub(parameter, sql), tuple(names)
