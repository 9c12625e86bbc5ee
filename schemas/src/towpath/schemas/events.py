"""
Event schemas: one Avro file per event type and version.

A file ``events/<name>.v<n>.avsc`` is frozen once ``events/released.sha256`` lists it. A
change is a new file with the next version, and each version must be able to read data
of every earlier one (``towpath.schemas.compatibility``). The subject in the registry is
the record's full name, because several event types share one topic.

``check_event`` validates a payload within the writer's own request. The relay does not
validate payloads.
"""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from types import MappingProxyType
from typing import Any, Final

import fastavro

from towpath.schemas.failure import DataError
from towpath.schemas.payload import Check, compile_check

FOLDER: Final = resources.files("towpath.schemas") / "events"
RELEASED: Final = "released.sha256"
_FILE_NAME: Final = re.compile(r"(?P<name>[a-z_]+)\.v(?P<version>[1-9][0-9]*)\.avsc\Z")


class InvalidEventError(DataError):
    """An event does not match its schema; nothing was written."""

    remedy = "Correct the writer, or add a version of the schema that allows it."

    def __init__(self, event_type: str, field_name: str, reason: str) -> None:
        where = f"field {field_name} " if field_name else ""
        super().__init__(f"event {event_type}: {where}{reason}")
        self.event_type = event_type
        self.field = field_name
        self.reason = reason


@dataclass(frozen=True, slots=True)
class EventSchema:
    """
    One version of one event type.

    Attributes:
        name: The event type, such as ``OrderPlaced``.
        version: Counts from 1; the registry gives the same numbers.
        subject: The record's full name, such as ``shop.OrderPlaced``.
        text: The text of the file, as registered.
        parsed: The schema as fastavro parses it.
    """

    name: str
    version: int
    subject: str
    text: str = field(repr=False)
    parsed: Mapping[str, Any] = field(repr=False, compare=False)
    check: Check = field(repr=False, compare=False)

    @property
    def reference(self) -> str:
        """Subject and version, as in the record header ``schema``."""
        return f"{self.subject}:{self.version}"


@functools.cache
def event_history() -> tuple[EventSchema, ...]:
    """Return every version of every event type, by subject, oldest first."""
    files = [f for f in FOLDER.iterdir() if f.name.endswith(".avsc")]
    schemas = [_read(f.name, f.read_text(encoding="utf-8")) for f in files]
    return tuple(sorted(schemas, key=lambda s: (s.subject, s.version)))


@functools.cache
def event_schemas() -> Mapping[str, EventSchema]:
    """Return the newest version of each event type, by the type's name."""
    return MappingProxyType({schema.name: schema for schema in event_history()})


def check_event(event_type: str, payload: Mapping[str, Any]) -> EventSchema:
    """
    Return the schema that the payload follows.

    Raises:
        InvalidEventError: There is no such event type, or a field does not match the
            schema; the error names the first such field.
    """
    schema = event_schemas().get(event_type)
    if schema is None:
        known = ", ".join(event_schemas())
        reason = f"has no schema; known: {known}"
        raise InvalidEventError(event_type, "", reason)
    mismatch = schema.check(payload)
    if mismatch is not None:
        raise InvalidEventError(event_type, mismatch.field, mismatch.reason)
    return schema


def _read(file_name: str, text: str) -> EventSchema:
    match = _FILE_NAME.match(file_name)
    if match is None:
        message = f"{file_name}: an event schema must be named <name>.v<n>.avsc"
        raise ValueError(message)
    parsed = fastavro.parse_schema(json.loads(text))
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        message = f"{file_name}: an event schema must be a record"
        raise ValueError(message)
    subject = str(parsed["name"])
    return EventSchema(
        name=subject.rpartition(".")[2],
        version=int(match["version"]),
        subject=subject,
        text=text,
        parsed=MappingProxyType(parsed),
        check=compile_check(parsed),
    )
