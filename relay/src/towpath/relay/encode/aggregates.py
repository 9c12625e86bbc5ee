"""
The aggregate route: a row of an aggregate view to a READ event on the outbox topic.

The row becomes a row of an outbox, and goes the way of those: one form for what is
streamed and what is read. What a view does not have (headers, trace, when it occurred,
columns that placements name) is left out. An id that was asked for and is not there is
a tombstone.

The event's id is a UUID made of snapshot, aggregate type and aggregate id, so that it
is the same whenever a chunk is read again.

An aggregate's id in the form that its view declares: one spelling, that of Postgres.

``text`` stands as it is. ``integer`` is decimal, without a plus and without zeros in
front. ``uuid`` is lower case with dashes. What is spelt otherwise is brought to that;
what is no id of the form at all has none.
"""

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from towpath.relay.encode.dead_letters import DeadLetters
from towpath.relay.encode.outbox import EventWriter
from towpath.relay.encode.outbox_columns import EVENT_PARTS, TopicRule, topics_of_relay
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
        view: AggregateView,
        topic: str,
        outbox: Outbox,
        dead: DeadLetters,
        on_skipped: Callable[[str], None],
    ) -> None:
        """
        Resolve the options for the view, as for an outbox table.

        Args:
            relation: The collection: aggregate id, type, payload.
            view: Its declaration.
            topic: Where the aggregate's events go.
            outbox: ``[relay.outbox]``.
            dead: Where rows go that make no event.
            on_skipped: Told of what is left out.
        """
        self.relation = relation
        self.topic = topic
        self._type = view.aggregate_type.encode()
        # Further views of a type give some of its events, and not whether it is there.
        self._tells_absence = not view.name
        self._dead = dead
        table = _table(relation.columns[2].type_oid)
        options = _options(outbox)
        reserved = topics_of_relay(dead.prefix)
        self._event = EventWriter(table, options, reserved, on_skipped).event
        # What becomes of a row that the options do not take.
        plain = options.model_copy(update={"cloudevents": ""})
        self._plain = EventWriter(table, plain, reserved, on_skipped).event

    def reads(self, rows: Sequence[Row], place: ReadSlice) -> Sequence[Record]:
        """
        Return the READ events of rows, or their dead letters, in their order.

        Raises:
            MalformedMessageError: A row has not the width of the view.
        """
        make_id = self._ids(place.snapshot_id)
        position, now_ms = b"%016x.-" % place.log_lsn, place.now_us // 1000
        records = []
        for row in rows:
            if len(row) != _WIDTH:
                reason = f"a row of {len(row)} values for {self.relation.name}"
                raise MalformedMessageError(reason)
            aggregate_id, kind, payload = row
            event_id = make_id(aggregate_id if isinstance(aggregate_id, bytes) else b"")
            whole = (
                event_id,
                self._type,
                aggregate_id,
                kind,
                payload,
                None,
                None,
                None,
            )
            try:
                record = _read(self._event(whole, position, now_ms), place)
            except UnroutableError as failure:
                plain = _read(self._plain(whole, position, now_ms), place)
                record = self._dead.of_record(plain, str(failure))
            records.append(record)
        return records

    def absent(self, key: Sequence[bytes], place: ReadSlice) -> Sequence[Record]:
        """Return the tombstone of an aggregate that was asked for and is not there."""
        if not self._tells_absence:
            return ()
        (aggregate_id,) = key
        position = b"%016x.-" % place.log_lsn
        marks: list[Header] = [
            (headers.EVENT_ID, self._ids(place.snapshot_id)(aggregate_id)),
            (headers.AGGREGATE_TYPE, self._type),
            (headers.POSITION, position),
        ]
        size = FIXED_BYTES + len(aggregate_id)
        now_ms = place.now_us // 1000
        gone = Record(self.topic, aggregate_id, None, marks, position, now_ms, size)
        return (_read(gone, place),)

    def _ids(self, snapshot_id: str) -> Callable[[bytes], bytes]:
        """Return what makes the ids of one snapshot's events."""
        name = f"towpath:snapshot:{snapshot_id}:{self.relation.table}"
        namespace = uuid.uuid5(uuid.NAMESPACE_URL, name)

        def make_id(aggregate_id: bytes) -> bytes:
            return str(uuid.uuid5(namespace, aggregate_id.decode())).encode()

        return make_id


class AggregateRoutes:
    """The routes of the declared views, made when their rows come."""

    def __init__(
        self, outbox: Outbox, dead: DeadLetters, on_skipped: Callable[[str], None]
    ) -> None:
        """
        Name the topics of the declared views.

        Raises:
            ConfigurationError: A type makes no topic that events may go to.
        """
        self._outbox = outbox
        self._dead = dead
        self._on_skipped = on_skipped
        self._declared = dict(_declared(outbox, dead.prefix))
        self._routes: dict[int, AggregateRoute] = {}

    def of(self, relation: Relation) -> ReadRoute | None:
        """Return the route of a collection; None: it is a table."""
        declared = self._declared.get(relation.full_name.joined)
        if relation.schema != COLLECTION_SCHEMA or declared is None:
            return None
        route = self._routes.get(relation.oid)
        if route is None or route.relation != relation:
            route = AggregateRoute(
                relation, *declared, self._outbox, self._dead, self._on_skipped
            )
            self._routes[relation.oid] = route
        return route


def _declared(
    outbox: Outbox, prefix: str
) -> Iterable[tuple[str, tuple[AggregateView, str]]]:
    """Give each collection's view and topic."""
    rule = TopicRule(outbox, topics_of_relay(prefix))
    for view in outbox.view:
        try:
            yield view.collection, (view, rule.topic(view.aggregate_type))
        except UnroutableError as failure:
            raise ConfigurationError([_mistake(view, failure)]) from failure


def _mistake(view: AggregateView, failure: UnroutableError) -> str:
    return f"relay.outbox.view: {view.aggregate_type}: {failure}"


def _table(payload_oid: int) -> Relation:
    """Return an outbox whose columns are called as the parts are."""
    columns = tuple(
        Column(part, payload_oid if part == "payload" else _TEXT)
        for part in EVENT_PARTS
    )
    return Relation(0, COLLECTION_SCHEMA, "()", columns, ())


def _options(outbox: Outbox) -> Outbox:
    """Return the options as far as a view has what they ask for."""
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


def _read(record: Record, place: ReadSlice) -> Record:
    """Mark a record as one that a snapshot read, and send it where that goes."""
    snapshot_id = place.snapshot_id.encode()
    marks: list[Header] = [*record.headers, (headers.SNAPSHOT, snapshot_id)]
    size = record.size + len(snapshot_id)
    return record._replace(topic=place.topic, headers=marks, size=size)


_INTEGER: Final = re.compile(rb"([+-]?)0*([0-9]+)")
# As Postgres reads it: a dash may stand after every four digits, braces around all.
_UUID: Final = re.compile(rb"(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}")

# Returns the id as the server would write it; None: it is none of the form.
Canonical = Callable[[bytes], bytes | None]


def canonical_id(form: IdForm) -> Canonical:
    """Return what spells ids of a form."""
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
