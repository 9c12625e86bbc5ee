"""
Domain events for the outbox: the event itself, and an application's own classes.

``Events`` binds an application's event types to its schemas and its classes::

    events = Events("schemas")

    @events.event(aggregate_type="post", key="post_id")
    @dataclass
    class PostPublished:
        post_id: int
        title: str

Dataclasses, pydantic models and any other class with a ``payload`` function can be
bound. By default, an event type without a schema must set ``schema=NO_SCHEMA``.
"""

import dataclasses
import json
import operator
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

from towpath.outbox.errors import UnboundEventError
from towpath.schemas.events import (
    EventSchema,
    EventSchemaError,
    EventSchemas,
    InvalidEventError,
    installed_schemas,
    make_schema,
)

NO_SCHEMA: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEvent:
    """
    One event, not yet recorded.

    Attributes:
        aggregate_type: The aggregate's type, such as ``order``; names the topic.
        aggregate_id: The aggregate's id; the record's key, which keeps events in order.
        type: The event type, such as ``OrderPlaced``; chooses the schema.
        payload: The event's content. Decimals, dates and UUIDs become text.
        occurred_at: The time of the event, timezone-aware; the header of the same name
            carries it in UTC. If None, the time at which the event is recorded.
        headers: Further record headers, text to text.
        traceparent: The W3C trace context that the event belongs to; if None, the
            context of OpenTelemetry's current span, if any. An invalid one is omitted.
        id: Identifies the event; consumers recognize a redelivery by this id.
    """

    aggregate_type: str
    aggregate_id: str
    type: str
    payload: Mapping[str, Any]
    occurred_at: datetime | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    traceparent: str | None = None
    id: uuid.UUID = field(default_factory=uuid.uuid4)


class _Binding(NamedTuple):
    """The conversion of one class into events."""

    type: str
    aggregate_type: str
    key: Callable[[Any], object]
    payload: Callable[[Any], Mapping[str, Any]]


AnyClass = TypeVar("AnyClass", bound=type)
Key = str | Callable[[Any], object]


class Events:
    """The event types of an application, with their schemas and classes."""

    def __init__(
        self,
        schemas: EventSchemas | str | Path | None = None,
        *,
        unknown: Literal["refuse", "none"] = "refuse",
    ) -> None:
        """
        Take the schemas; classes are bound later.

        Args:
            schemas: The schemas, or the folder of their files; by default, those of
                installed packages that declare the entry point ``towpath.events``.
            unknown: ``refuse``: an event type without a schema is refused; ``none``:
                it needs no schema.

        Raises:
            EventSchemaError: A schema cannot be used.
        """
        if schemas is None:
            schemas = installed_schemas()
        elif not isinstance(schemas, EventSchemas):
            schemas = EventSchemas.from_folder(schemas)
        self._schemas = schemas
        self._accepts_unknown = unknown == NO_SCHEMA
        self._without_schema: set[str] = set()
        self._bindings: dict[type, _Binding] = {}

    @property
    def schemas(self) -> EventSchemas:
        """All schemas, including those given in code."""
        return self._schemas

    @property
    def aggregates(self) -> Mapping[str, str]:
        """The aggregate type of each event type that has a class."""
        return {one.type: one.aggregate_type for one in self._bindings.values()}

    def event(
        self,
        *,
        aggregate_type: str,
        key: Key,
        type: str | None = None,  # noqa: A002 - the field's name
        schema: str | Mapping[str, Any] | None = None,
        payload: Callable[[Any], Mapping[str, Any]] | None = None,
    ) -> Callable[[AnyClass], AnyClass]:
        """
        Bind a class: its instances can be recorded as events.

        Args:
            aggregate_type: The aggregate's type.
            key: The attribute with the aggregate's id, or a function that returns it.
            type: The event type; by default the name of the class.
            schema: An Avro record, as JSON text or a mapping; ``NO_SCHEMA`` for any
                JSON; by default, the schema that ``Events`` has for the event type.
            payload: Returns the payload of an instance; by default, the fields of a
                dataclass or of a pydantic model.

        Raises:
            EventSchemaError: There is no schema, or it is unusable or has a different
                name.
            UnboundEventError: The class has no fields and no ``payload`` was given.
        """

        def bind(cls: AnyClass) -> AnyClass:
            name = type or cls.__name__
            self._declare(name, schema)
            get = operator.attrgetter(key) if isinstance(key, str) else key
            reads = payload or _payload_of(cls)
            self._bindings[cls] = _Binding(name, aggregate_type, get, reads)
            return cls

        return bind

    def without_schema(self, *types: str) -> None:
        """Accept any JSON as the payload of these event types."""
        self._without_schema.update(types)

    def convert(self, event: object) -> OutboxEvent:
        """
        Convert an instance of a bound class, or a mapping of fields, to an event.

        Raises:
            UnboundEventError: Its class is not bound, or a field is missing or unknown.
            InvalidEventError: Its aggregate has no id yet.
        """
        if isinstance(event, OutboxEvent):
            return event
        for cls in type(event).__mro__:
            binding = self._bindings.get(cls)
            if binding is not None:
                if (key := binding.key(event)) is None:
                    raise InvalidEventError(binding.type, "aggregate_id", "is None")
                return OutboxEvent(
                    aggregate_type=binding.aggregate_type,
                    aggregate_id=str(key),
                    type=binding.type,
                    payload=binding.payload(event),
                )
        if isinstance(event, Mapping):
            try:
                return OutboxEvent(**event)
            except TypeError as error:
                message = f"the mapping is not an event: {error}"
                raise UnboundEventError(message) from error
        message = f"the class {type(event).__qualname__} is not bound to an event type"
        raise UnboundEventError(message)

    def check(self, event_type: str, payload: Mapping[str, Any]) -> EventSchema | None:
        """
        Return the schema that a payload matches; None if the type needs none.

        Raises:
            InvalidEventError: The type has no schema, or the payload does not match it.
        """
        if event_type in self._without_schema:
            return None
        if self._accepts_unknown and event_type not in self._schemas.newest:
            return None
        return self._schemas.check(event_type, payload)

    def _declare(self, name: str, schema: str | Mapping[str, Any] | None) -> None:
        if schema is None:
            if not self._accepts_unknown and name not in self._schemas.newest:
                known = ", ".join(self._schemas.newest) or "none"
                message = (
                    f"the event type {name} has no schema; event types with a schema: "
                    f"{known}"
                )
                raise EventSchemaError(message)
        elif schema == NO_SCHEMA:
            self._without_schema.add(name)
        else:
            text = schema if isinstance(schema, str) else json.dumps(schema)
            made = make_schema(text, place=f"event {name}")
            if made.name != name:
                message = f"the schema of the event type {name} is named {made.name}"
                raise EventSchemaError(message)
            self._schemas |= EventSchemas([made])


def _payload_of(cls: type) -> Callable[[Any], Mapping[str, Any]]:
    """Return the function that reads the fields of a class's instances."""
    if dataclasses.is_dataclass(cls):
        return _fields_of
    dump = getattr(cls, "model_dump", None)
    if callable(dump):
        return dump  # type: ignore[no-any-return]  # pydantic's
    message = f"the class {cls.__qualname__} has no fields: give it a payload function"
    raise UnboundEventError(message)


def _fields_of(instance: Any) -> Mapping[str, Any]:  # noqa: ANN401 - any dataclass
    """Return the fields of a dataclass, and of nested ones; values are not copied."""
    return {
        each.name: _nested(getattr(instance, each.name))
        for each in dataclasses.fields(instance)
    }


def _nested(value: Any) -> Any:  # noqa: ANN401 - any value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields_of(value)
    if isinstance(value, list | tuple):
        return [_nested(element) for element in value]
    if isinstance(value, Mapping):
        return {key: _nested(element) for key, element in value.items()}
    return value
