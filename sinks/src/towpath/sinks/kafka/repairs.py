"""
Requests rows for one sink from the relay, through Kafka.

A request is an ``execute-snapshot`` signal on the relay's signal topic, with the sink
as its ``target``. It lists keys, names columns, or covers a whole collection. The relay
delivers the row of each key, or a delete if there is none; the rows with a value in one
of the columns; or all rows, and then a sweep. These rows have positions below all later
changes, so a repeated request is harmless. Requests are not merged over time: of two
requests for a key, the first may have been answered before the row was lost again.
"""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, Final

import orjson
import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from towpath.schemas.failure import TowpathError
from towpath.schemas.table_name import TableName
from towpath.schemas.topics import table_of, table_topic
from towpath.settings import AggregateView, Route, RouteKind, Settings, Sink
from towpath.sinks.change import Value
from towpath.sinks.changes.routing import routing_of
from towpath.sinks.errors import BrokerUnavailableError, ShapeUnknownError
from towpath.sinks.kafka import client
from towpath.sinks.kafka.client import (
    REQUEST_TIMEOUT_S,
    KafkaRelations,
    Topics,
    unavailable,
)
from towpath.sinks.state import incomplete

# Postgres limits a key to 2,704 bytes, Kafka a record to about a million.
KEYS_AT_ONCE: Final = 300

Key = tuple[Value, ...]

_log = structlog.get_logger("towpath.sinks.kafka")


class KafkaRepairs:
    """Requests rows of one sink's routes from the relay."""

    def __init__(self, settings: Settings, sink: Sink) -> None:
        """Store the parameters; no connection is opened yet."""
        self._settings = settings
        self._sink = sink
        self._topic = settings.signal_topic
        self._failures: list[KafkaError] = []
        self._collections: dict[str, str | None] = {}
        self._opened: Producer | None = None

    def request_keys(self, route: str, keys: Iterable[Key]) -> bool:
        """
        Request the rows of these keys, and deletes for the absent ones.

        Returns:
            Whether the rows can be requested; those of an event log cannot, nor can
            those of a table in ``relay.rows.key_columns``.

        Raises:
            BrokerUnavailableError: The request is not known to be durable.
        """
        routing = routing_of(self._route(route))
        found = (routing.source_key(key) if routing else key for key in keys)
        return self.request_source_keys(route, found) is not None

    def request_source_keys(self, route: str, keys: Iterable[Key]) -> list[str] | None:
        """
        Request rows as ``request_keys`` does, but by their keys in the source.

        Returns:
            The ids of the signals; ``None`` if the rows cannot be requested.

        Raises:
            BrokerUnavailableError: The request is not known to be durable.
        """
        collection = self._collection(self._route(route))
        if not self._can_request(route, collection, is_by_key=True):
            return None
        signals = [
            self._signal({"data-collections": [collection], "keys": piece})
            for piece in _pieces(iter(dict.fromkeys(keys)), KEYS_AT_ONCE)
        ]
        self._send(signals)
        count = sum(len(signal["data"]["keys"]) for signal in signals)
        _log.info("refetch requested", sink=self._sink.name, route=route, keys=count)
        return [str(signal["id"]) for signal in signals]

    def request_columns(
        self, route: str, columns: Sequence[str], why: str
    ) -> str | None:
        """
        Request the rows of a route in which one of these columns is not null.

        Returns:
            The id of the snapshot; ``None`` if the rows cannot be requested.

        Raises:
            BrokerUnavailableError: The request is not known to be durable.
        """
        collection = self._collection(self._route(route))
        if not self._can_request(route, collection):
            return None
        data = {"data-collections": [collection], "columns": list(columns)}
        signal = self._signal(data)
        snapshot_id = str(signal["id"])
        # Earlier entries are kept: this snapshot does not read their rows.
        state_folder, sink = self._settings.state_folder, self._sink.name
        incomplete.note(state_folder, sink, route, snapshot_id)
        try:
            self._send([signal])
        except TowpathError:
            # The request is repeated with a different id.
            incomplete.end(state_folder, sink, route, snapshot_id)
            raise
        _log.warning(
            "refetch of altered columns requested", sink=sink, route=route, reason=why
        )
        return snapshot_id

    def request_all(self, route: str, why: str) -> bool:
        """
        Request all rows of a route, with a sweep of those deleted from the source.

        Returns:
            Whether the rows can be requested; those of an event log cannot.

        Raises:
            BrokerUnavailableError: The request is not known to be durable.
        """
        collection = self._collection(self._route(route))
        if not self._can_request(route, collection):
            return False
        signal = self._signal({"data-collections": [collection], "sweep": True})
        incomplete.begin(
            self._settings.state_folder, self._sink.name, route, signal["id"]
        )
        self._send([signal])
        _log.warning(
            "refetch of a whole route requested",
            sink=self._sink.name,
            route=route,
            reason=why,
        )
        return True

    def _collection(self, route: Route) -> str | None:
        """Return the collection of a route as signals name it."""
        if route.name in self._collections:
            return self._collections[route.name]
        announced = announced_name(self._settings, route)
        found = collection_of(self._settings, route, announced)
        # Without a name, the relay may announce the table later.
        if announced is not None:
            self._collections[route.name] = found
        return found

    def _route(self, name: str) -> Route:
        return next(route for route in self._sink.route if route.name == name)

    def _can_request(
        self, route: str, collection: str | None, *, is_by_key: bool = False
    ) -> bool:
        reason = None
        if collection is None:
            reason = "no captured table or view provides its rows"
        elif not self._topic:
            reason = "relay.snapshot.signal_topic is empty"
        elif is_by_key and self._has_key_columns(collection):
            # Signals list primary keys: this key would match the wrong rows.
            _log.info(
                "refetch not possible by key",
                sink=self._sink.name,
                route=route,
                reason="relay.rows.key_columns gives its records a different key",
            )
            return False
        if reason is not None:
            _log.warning(
                "refetch not possible: fill the route with towpath sink refill",
                sink=self._sink.name,
                route=route,
                reason=reason,
            )
        return reason is None

    def _has_key_columns(self, collection: str) -> bool:
        return TableName.parse(collection).text in self._settings.relay.rows.key_columns

    def _signal(self, data: dict[str, object]) -> dict[str, Any]:
        return {
            "id": f"repair-{uuid.uuid4()}",
            "type": "execute-snapshot",
            "data": {**data, "target": self._sink.name},
        }

    def _send(self, signals: Iterable[dict[str, Any]]) -> None:
        producer = self._producer()
        self._failures.clear()
        try:
            for signal in signals:
                producer.produce(
                    self._topic,
                    key=self._settings.database.prefix,
                    value=orjson.dumps(signal),
                    on_delivery=self._delivered,
                )
                producer.poll(0)
        except KafkaException as error:
            # A client with a fatal error remains unusable.
            self._opened = None
            raise unavailable(error) from error
        waiting = producer.flush(REQUEST_TIMEOUT_S)
        if waiting or self._failures:
            why = self._failures[0].str() if self._failures else "no answer in time"
            message = f"rows could not be requested on {self._topic}: {why}"
            raise BrokerUnavailableError(message)

    def _producer(self) -> Producer:
        """Return the producer; only the relay creates the topic."""
        kafka = self._settings.kafka
        if self._opened is None:
            if self._topic not in Topics(kafka).names():
                message = f"the relay has not created {self._topic} yet"
                raise BrokerUnavailableError(message)
            self._opened = client.producer(kafka)
        return self._opened

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failures.append(error)


def announced_name(settings: Settings, route: Route) -> TableName | None:
    """
    Return the announced table of a route, if the configuration does not name it.

    Raises:
        BrokerUnavailableError: The broker does not answer.
    """
    is_named = table_behind(settings, route.topic) in settings.capture.names
    is_table = route.kind is RouteKind.TABLE
    if is_named or not is_table or not settings.capture.expressions:
        return None
    relations = KafkaRelations(settings.kafka, settings.database.prefix)
    with closing(relations) as announced:
        try:
            return announced.shape(route.topic).full_name
        except ShapeUnknownError:
            return None


def collection_of(
    settings: Settings, route: Route, announced: TableName | None = None
) -> str | None:
    """
    Return the collection of a route as signals name it.

    ``None`` if its rows cannot be read again.

    Args:
        settings: The configuration.
        route: The route.
        announced: The table of its topic, as the relay has announced it.
    """
    match route.kind:
        case RouteKind.TABLE:
            table = table_behind(settings, route.topic, announced)
            return None if table is None else TableName.parse(table).entry
        case RouteKind.AGGREGATE:
            view = view_behind(settings, route.topic)
            return None if view is None else view.collection
        case RouteKind.EVENT_LOG:
            return None


def table_behind(
    settings: Settings, topic: str, announced: TableName | None = None
) -> str | None:
    """
    Return the captured table whose changes a topic carries.

    A topic's name does not preserve all characters of a table's name, so the announced
    table takes precedence if it is captured.
    """
    prefix = settings.database.prefix
    if announced is not None and settings.capture.includes(announced.text):
        return announced.text
    derived = table_of(prefix, topic)
    is_captured = derived is not None and settings.capture.includes(derived)
    captured = [derived] if derived and is_captured else []
    for name in (*settings.capture.names, *captured):
        if table_topic(prefix, TableName.parse(name)) == topic:
            return name
    return None


def view_behind(settings: Settings, topic: str) -> AggregateView | None:
    """
    Return the declared view that provides the state of a topic's aggregates.

    A view with a name is additional: its events are not the whole state, so it cannot
    provide the rows.
    """
    outbox = settings.relay.outbox
    for view in outbox.view:
        if not view.name and outbox.topic_of(view.aggregate_type) == topic:
            return view
    return None


def _pieces(keys: Iterator[Key], size: int) -> Iterator[list[Key]]:
    while piece := list(islice(keys, size)):
        yield piece
