"""
Record events in the caller's own transaction, through a given or default outbox.

An event can be written in three ways, and the relay publishes the same record for each:

============  ======================================================================
``keep``      a row of ``towpath.outbox``, which stays until it is deleted
``delete``    a row that the same transaction deletes again: the table stays empty
``message``   a logical message in the WAL alone, from ``pg_logical_emit_message``: no
              table at all, and nothing to read back
============  ======================================================================

Nothing here opens a connection or commits.
"""

import json
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

from towpath.outbox.event import Events, OutboxEvent
from towpath.outbox.row import MAX_BYTES, ClaimCheck, Row, RowRules
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import UsageError
from towpath.schemas.table_name import TableName, quoted
from towpath.schemas.transactions import TEXT, Statement, run, run_async

Way = Literal["keep", "delete", "message"]

TABLE: Final = "towpath.outbox"
# The relay's default of [relay.outbox] message_prefix.
MESSAGE_PREFIX: Final = "towpath.outbox"
# The columns of an event, with the type that the text of each is cast to.
_CASTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "id": "uuid",
        "aggregate_type": "text",
        "aggregate_id": "text",
        "type": "text",
        "payload": "json",
        "headers": "json",
        "traceparent": "text",
        "occurred_at": "timestamptz",
    }
)


def require_known_columns(columns: Mapping[str, str]) -> None:
    """
    Require that the keys are columns of an event.

    Raises:
        UsageError: A key is unknown; the message lists the known ones.
    """
    if unknown := sorted(columns.keys() - _CASTS.keys()):
        message = (
            f"columns has unknown keys: {', '.join(unknown)}; "
            f"the known ones are {', '.join(_CASTS)}"
        )
        raise UsageError(message)


class Outbox:
    """Defines which events an outbox accepts, and how it writes them."""

    def __init__(  # noqa: PLR0913 - keyword options
        self,
        events: Events | None = None,
        *,
        way: Way = "keep",
        table: str = TABLE,
        columns: Mapping[str, str] = MappingProxyType({}),
        message_prefix: str = MESSAGE_PREFIX,
        max_bytes: int = MAX_BYTES,
        claim_check: ClaimCheck | None = None,
        clock: Clock | None = None,
    ) -> None:
        """
        Describe the outbox; no connection is opened.

        Args:
            events: The event types; by default, those of installed packages.
            way: How events are written.
            table: The outbox table, as in the relay's ``[relay.outbox] table``.
            columns: Column names that differ from the default ones, as in
                ``[relay.outbox.columns]``; an empty name omits the column.
            message_prefix: The prefix of logical messages, as in the relay's
                ``[relay.outbox] message_prefix``.
            max_bytes: The largest accepted record, in bytes; brokers accept about a
                million by default.
            claim_check: Stores the payload of a larger event elsewhere and returns its
                location; if None, a larger event is refused.
            clock: Gives the time of events that have none.

        Raises:
            EventSchemaError: A schema of an installed package cannot be used.
            UsageError: ``way`` or a key of ``columns`` is unknown, or the way
                ``delete`` has no column for the id.
        """
        if way not in _WAYS:
            message = f"way must be keep, delete or message, not {way!r}"
            raise UsageError(message)
        require_known_columns(columns)
        self.events = Events() if events is None else events
        self._rules = RowRules(
            self.events, clock or SystemClock(), max_bytes, claim_check
        )
        self._way: Way = way
        self._table = TableName.parse(table).sql if "." in table else quoted(table)
        names = {part: columns.get(part, part) for part in _CASTS}
        self._columns = {part: name for part, name in names.items() if name}
        if way == "delete" and "id" not in self._columns:
            message = "the way 'delete' needs a column for the id"
            raise UsageError(message)
        self._prefix = message_prefix

    def record(self, session: Any, event: object) -> OutboxEvent:  # noqa: ANN401 - any driver
        """
        Write one event in the transaction of the session, and return it.

        Args:
            session: A session or connection of a kind that
                ``towpath.schemas.transactions`` supports.
            event: An ``OutboxEvent``, its fields as a mapping, or an instance of a
                class that is bound to an event type.

        Raises:
            InvalidEventError: The event does not match its schema or cannot be
                delivered; nothing was written.
            UsageError: The object is not an event, or the session cannot be used.
        """
        (recorded,) = self.record_all(session, (event,))
        return recorded

    def record_all(
        self,
        session: Any,  # noqa: ANN401 - any driver
        events: Iterable[object],
    ) -> list[OutboxEvent]:
        """
        Write several events, in order, with as few statements as possible.

        Raises:
            InvalidEventError: An event is invalid; none was written.
            UsageError: An object is not an event, or the session cannot be used.
        """
        converted, statements = self._prepare(events)
        if statements:
            run(session, statements)
            _notify(session, converted)
        return converted

    async def record_async(self, session: Any, event: object) -> OutboxEvent:  # noqa: ANN401
        """Write one event in an asynchronous session; see ``record``."""
        (recorded,) = await self.record_all_async(session, (event,))
        return recorded

    async def record_all_async(
        self,
        session: Any,  # noqa: ANN401 - any driver
        events: Iterable[object],
    ) -> list[OutboxEvent]:
        """Write several events in an asynchronous session; see ``record_all``."""
        converted, statements = self._prepare(events)
        if statements:
            await run_async(session, statements)
            _notify(session, converted)
        return converted

    def _prepare(
        self, events: Iterable[object]
    ) -> tuple[list[OutboxEvent], list[Statement]]:
        converted = [self.events.convert(event) for event in events]
        rows = [self._rules.row(event) for event in converted]
        if not rows:
            return [], []
        if self._way == "message":
            return converted, [self._message(row) for row in rows]
        statements = []
        for first in range(0, len(rows), _MAX_ROWS):
            some = rows[first : first + _MAX_ROWS]
            statements.append(self._insert(some))
            if self._way == "delete":
                statements.append(self._delete(some))
        return converted, statements

    def _insert(self, rows: Sequence[Row]) -> Statement:
        """
        Return the statement that inserts rows.

        The text is the same for any number of rows above one, because drivers cache
        statements by their text. A single row is inserted faster without arrays.
        """
        names = ", ".join(map(quoted, self._columns.values()))
        values: dict[str, str | None]
        if len(rows) == 1:
            source = f"values ({self._casts()})"
            values = {part: rows[0][part] for part in self._columns}
        else:
            source = f"select * from unnest({self._casts('[]')})"  # noqa: S608 - quoted
            values = {
                part: _array_text(r[part] for r in rows) for part in self._columns
            }
        return Statement.of(f"insert into {self._table} ({names}) {source}", values)

    def _casts(self, of_type: str = "") -> str:
        casts = (f"cast({TEXT} as {_CASTS[part]}{of_type})" for part in self._columns)
        return ", ".join(casts)

    def _delete(self, rows: Sequence[Row]) -> Statement:
        column = quoted(self._columns["id"])
        ids = f"any (cast({TEXT} as uuid[]))"
        sql = f"delete from {self._table} where {column} = {ids}"  # noqa: S608 - quoted
        return Statement.of(sql, {"id": _array_text(row["id"] for row in rows)})

    def _message(self, row: Row) -> Statement:
        fields = [
            f"{json.dumps(name)}: {_json_value(part, row[part])}"
            for part, name in self._columns.items()
        ]
        values = {"prefix": self._prefix, "content": "{" + ", ".join(fields) + "}"}
        return Statement.of(
            f"select pg_logical_emit_message(true, {TEXT}, {TEXT})", values
        )


_WAYS: Final = ("keep", "delete", "message")
# The limit on rows per statement, whose parameters must stay below 1 GB in total.
_MAX_ROWS: Final = 500
_default: list[Outbox] = []
# An entry is dropped when its engine is no longer used.
_by_engine: MutableMapping[Any, Outbox] = WeakKeyDictionary()


def configure(outbox: Outbox, *, engine: Any = None) -> None:  # noqa: ANN401 - SQLAlchemy's
    """
    Make ``record`` and its companions use an outbox in this process.

    Args:
        outbox: The outbox.
        engine: A SQLAlchemy engine, synchronous or asynchronous: only its sessions and
            connections, and those of engines that its ``execution_options`` returned,
            use the outbox. If None, sessions and connections of all other engines,
            and of other drivers, use the outbox.
    """
    if engine is None:
        _default[:] = [outbox]
    else:
        _by_engine[_synchronous(engine)] = outbox


def outbox_of(session: Any) -> Outbox:  # noqa: ANN401 - any driver
    """
    Return the outbox of a session: its engine's outbox, or else the default one.

    Without ``configure`` the default outbox has the installed schemas.

    Raises:
        EventSchemaError: A schema of an installed package cannot be used.
    """
    if _by_engine:
        bind = session.get_bind() if hasattr(session, "get_bind") else session
        engine = _synchronous(getattr(bind, "engine", None))
        while engine is not None:
            if engine in _by_engine:
                return _by_engine[engine]
            # ``Engine.execution_options`` returns an engine that wraps another one.
            engine = getattr(engine, "_proxied", None)
    if not _default:
        _default.append(Outbox())
    return _default[0]


def _synchronous(engine: Any) -> Any:  # noqa: ANN401 - SQLAlchemy's
    """Return the engine that an asynchronous engine wraps, or the engine itself."""
    return getattr(engine, "sync_engine", engine)


def record(session: Any, event: object) -> OutboxEvent:  # noqa: ANN401 - any driver
    """Write one event through the session's outbox; see ``Outbox.record``."""
    return outbox_of(session).record(session, event)


def record_all(session: Any, events: Iterable[object]) -> list[OutboxEvent]:  # noqa: ANN401
    """Write several events through the session's outbox; see ``Outbox.record_all``."""
    return outbox_of(session).record_all(session, events)


async def record_async(session: Any, event: object) -> OutboxEvent:  # noqa: ANN401
    """Write one event through the session's outbox; see ``Outbox.record_async``."""
    return await outbox_of(session).record_async(session, event)


async def record_all_async(session: Any, events: Iterable[object]) -> list[OutboxEvent]:  # noqa: ANN401
    """Write several events through the session's outbox; see ``record_all``."""
    return await outbox_of(session).record_all_async(session, events)


# Called with the session and the events that were recorded in it.
Observer = Callable[[Any, Sequence[OutboxEvent]], None]
_observers: list[Observer] = []


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Call a function with all events that are recorded within the block."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def _notify(session: Any, events: Sequence[OutboxEvent]) -> None:  # noqa: ANN401
    for observer in _observers:
        observer(session, events)


def _array_text(texts: Iterable[str | None]) -> str:
    """Return the text of a Postgres array."""
    return "{" + ",".join(map(_element, texts)) + "}"


def _element(text: str | None) -> str:
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _json_value(part: str, text: str | None) -> str:
    """Return a column's text as a JSON value; JSON columns are left as they are."""
    is_json = text is not None and _CASTS[part] == "json"
    return str(text) if is_json else json.dumps(text, ensure_ascii=False)
