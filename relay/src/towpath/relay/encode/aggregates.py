"""
The aggregate route: turns a row of an aggregate view into a READ event of its topic.

The row becomes an outbox row, so that streamed and read events have one format. A
view has no columns for headers, trace or ``occurred_at``; placements of columns that it
lacks are dropped. A requested id that a type's main view lacks results in a tombstone.
The event's id is a UUID derived from snapshot, view and aggregate id, so it is the same
when a chunk is read again.

``canonical_id`` writes an aggregate's id as Postgres does, in the form that its view
declares: ``text`` unchanged; ``integer`` decimal, without plus sign or leading zeros;
``uuid`` in lower case with dashes. Other strings have no canonical form.
"""

import re
import uuid
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from towpath.relay.encode.dead_letters import DeadLetters
from towpath.relay.encode.outbox import EventWriter
from towpath.relay.encode.outbox_columns import EVENT_PARTS, TopicRule
from towpath.relay.encode.record import FIXED_BYTES, Header, Record
from towpath.relay.encode.rows import ReadRoute, ReadSlice
from towpath.relay.errors import MalformedMessageError, UnroutableError
from towpath.relay.wal.messages import Column, Relation, Row
from towpath.schemas import headers
from towpath.schemas.failure import ConfigurationError
from towpath.settings.outbox import (
    COLLECTION_SCHEMA,
    AggregateView,
    IdForm,
    Outbox,
    OutboxColumns,
)
from towpath.settings.syntax import parse_placement

_TEXT: Final = 25
_WIDTH: Final = 3
_GIVEN: Final = ("id", "aggregate_type", "aggregate_id", "type", "payload")


class AggregateRoute:
    """Turns the rows of one aggregate view into READ events."""

    def __init__(
        self,
        relation: Relation,
        declared: tuple[AggregateView, str],
        outbox: Outbox,
        dead: DeadLetters,
        reserved: Container[str],
        on_skipped: Callable[[str], None],
    ) -> None:
        """
        Resolve the options for the view, as for an outbox table.

        Args:
            relation: The collection: aggregate id, type, payload.
            declared: The collection's view, and the topic of the aggregate's events.
            outbox: ``[relay.outbox]``.
            dead: Makes dead letters.
            reserved: Topics that no event may use.
            on_skipped: Called with the reason for a header that is dropped.
        """
        self.relation = relation
        view, self.topic = declared
        self._type = view.aggregate_type.encode()
        # Only a type's main view decides whether an aggregate exists.
        self._has_tombstones = not view.name
        self._dead = dead
        table = _table(relation.columns[2].type_oid)
        options = _options(outbox)
        self._event = EventWriter(table, options, reserved, on_skipped).event
        # Makes the event for the dead letter of a row that the options refuse.
        plain = options.model_copy(update={"cloudevents": "", "placements": ()})
        self._plain = EventWriter(table, plain, reserved, on_skipped).event

    def reads(self, rows: Sequence[Row], read_slice: ReadSlice) -> Sequence[Record]:
        """
        Return the READ events of rows, or their dead letters, in row order.

        Raises:
            MalformedMessageError: A row does not have one value per column.
        """
        make_id = self._ids(read_slice.snapshot_id)
        position, now_ms = b"%016x.-" % read_slice.log_lsn, read_slice.now_us // 1000
        records = []
        for row in rows:
            if len(row) != _WIDTH:
                reason = (
                    f"a row of {self.relation.name} has {len(row)} values, not {_WIDTH}"
                )
                raise MalformedMessageError(reason)
            aggregate_id, kind, payload = row
            event_id = make_id(aggregate_id if isinstance(aggregate_id, bytes) else b"")
            full = (event_id, self._type, aggregate_id, kind, payload, None, None, None)
            try:
                record = _read(self._event(full, position, now_ms), read_slice)
            except UnroutableError as failure:
                plain = _read(self._plain(full, position, now_ms), read_slice)
                record = self._dead.of_record(plain, str(failure))
            records.append(record)
        return records

    def absent(self, key: Sequence[bytes], read_slice: ReadSlice) -> Sequence[Record]:
        """Return the tombstone of a requested aggregate; only a main view makes one."""
        if not self._has_tombstones:
            return ()
        (aggregate_id,) = key
        position = b"%016x.-" % read_slice.log_lsn
        own: list[Header] = [
            (headers.EVENT_ID, self._ids(read_slice.snapshot_id)(aggregate_id)),
            (headers.AGGREGATE_TYPE, self._type),
            (headers.POSITION, position),
        ]
        size = FIXED_BYTES + len(aggregate_id)
        now_ms = read_slice.now_us // 1000
        tombstone = Record(self.topic, aggregate_id, None, own, position, now_ms, size)
        return (_read(tombstone, read_slice),)

    def _ids(self, snapshot_id: str) -> Callable[[bytes], bytes]:
        """Return the function that makes the event ids of a snapshot."""
        name = f"towpath:snapshot:{snapshot_id}:{self.relation.table}"
        namespace = uuid.uuid5(uuid.NAMESPACE_URL, name)

        def make_id(aggregate_id: bytes) -> bytes:
            return str(uuid.uuid5(namespace, aggregate_id.decode())).encode()

        return make_id


class AggregateRoutes:
    """The routes of the declared views, each created with its first row."""

    def __init__(
        self,
        outbox: Outbox,
        dead: DeadLetters,
        reserved: Container[str],
        on_skipped: Callable[[str], None],
    ) -> None:
        """
        Resolve the topics of the declared views.

        Raises:
            ConfigurationError: The topic of a type is illegal or reserved.
        """
        self._outbox = outbox
        self._dead = dead
        self._reserved = reserved
        self._on_skipped = on_skipped
        self._declared = dict(_declared(outbox, reserved))
        self._routes: dict[int, AggregateRoute] = {}

    def of(self, relation: Relation) -> ReadRoute | None:
        """Return the route of a collection; None for a table."""
        declared = self._declared.get(relation.full_name.joined)
        if relation.schema != COLLECTION_SCHEMA or declared is None:
            return None
        route = self._routes.get(relation.oid)
        if route is None or route.relation != relation:
            route = AggregateRoute(
                relation,
                declared,
                self._outbox,
                self._dead,
                self._reserved,
                self._on_skipped,
            )
            self._routes[relation.oid] = route
        return route


def _declared(
    outbox: Outbox, reserved: Container[str]
) -> Iterable[tuple[str, tuple[AggregateView, str]]]:
    """Yield each collection with its view and topic."""
    rule = TopicRule(outbox, reserved)
    for view in outbox.view:
        try:
            yield view.collection, (view, rule.topic(view.aggregate_type))
        except UnroutableError as failure:
            raise ConfigurationError([_mistake(view, failure)]) from failure


def _mistake(view: AggregateView, failure: UnroutableError) -> str:
    return f"relay.outbox.view: {view.aggregate_type}: {failure}"


def _table(payload_oid: int) -> Relation:
    """Return an outbox table whose columns are named like the parts of an event."""
    columns = tuple(
        Column(part, payload_oid if part == "payload" else _TEXT)
        for part in EVENT_PARTS
    )
    return Relation(0, COLLECTION_SCHEMA, "()", columns, ())


def _options(outbox: Outbox) -> Outbox:
    """Return the options that a view has columns for."""
    named = {getattr(outbox.columns, part) or part: part for part in reversed(_GIVEN)}
    placements = [parse_placement(text) for text in outbox.placements]
    return outbox.model_copy(
        update={
            "columns": OutboxColumns(),
            "route_by": "",
            "placements": tuple(
                f"{named[each.column]}:{each.place}:{each.name}"
                for each in placements
                if each.column in named
            ),
        }
    )


def _read(record: Record, read_slice: ReadSlice) -> Record:
    """Return a record as a READ, with the topic of its slice."""
    snapshot_id = read_slice.snapshot_id.encode()
    all_headers: list[Header] = [*record.headers, (headers.SNAPSHOT, snapshot_id)]
    size = record.size + len(snapshot_id)
    return record._replace(topic=read_slice.topic, headers=all_headers, size=size)


_INTEGER: Final = re.compile(rb"([+-]?)0*([0-9]+)")
# Postgres allows a dash after every four digits, and braces around the whole UUID.
_UUID: Final = re.compile(rb"(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}")

# Returns the id as Postgres writes it; None if it does not have the form.
Canonical = Callable[[bytes], bytes | None]


def canonical_id(form: IdForm) -> Canonical:
    """Return the function that makes ids of a form canonical."""
    return _FORMS[form]


def _text(text: bytes) -> bytes | None:
    return text


def _integer(text: bytes) -> bytes | None:
    found = _INTEGER.fullmatch(text.strip())
    if found is None:
        return None
    sign, digits = found.groups()
    return b"-" + digits if sign == b"-" and digits != b"0" else digits


def _uuid(text: bytes) -> bytes | None:
    inner = text[1:-1] if text[:1] == b"{" and text[-1:] == b"}" else text
    if _UUID.fullmatch(inner) is None:
        return None
    digits = inner.replace(b"-", b"").lower()
    parts = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
    return b"-".join(parts)


_FORMS: Final[Mapping[IdForm, Canonical]] = MappingProxyType(
    {IdForm.TEXT: _text, IdForm.INTEGER: _integer, IdForm.UUID: _uuid}
)
