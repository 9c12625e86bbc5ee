"""
Event schemas: one Avro file per event type and version.

The files belong to the application, in its own folder: ``<name>.v<n>.avsc``. A released
file is never edited. A change is a new file with the next version, and each version
must be able to read data of every earlier one (``towpath.schemas.compatibility``). A
type that several events share has its own files (``towpath.schemas.schema_files``). The
subject in the registry is the record's full name, because several event types share one
topic.

Processes that do not know the application, such as a sink, find the folders of
installed packages through the entry-point group ``towpath.events``, whose values name
packages with schema files.

``EventSchemas.check`` validates a payload within the writer's own request. The relay
does not validate payloads.
"""

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from towpath.schemas.failure import DataError
from towpath.schemas.payload import Check, compile_check
from towpath.schemas.schema_files import (
    EventSchemaError,
    SchemaFile,
    embedded,
    read_files,
)

__all__ = [
    "EventSchema",
    "EventSchemaError",
    "EventSchemas",
    "InvalidEventError",
    "installed_schemas",
    "make_schema",
]

ENTRY_POINTS: Final = "towpath.events"


class InvalidEventError(DataError):
    """An event does not match its schema; nothing was written."""

    remedy = "Correct the writer, or add a schema version that allows the payload."

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
        version: Counts from 1; the registry assigns the same numbers.
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

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the text and version: another process compiles its own check."""
        return make_schema, (self.text, self.version)

    @property
    def reference(self) -> str:
        """Subject and version, as in the record header ``schema``."""
        return f"{self.subject}:{self.version}"


class EventSchemas:
    """
    The event schemas of an application: every version of every event type.

    Attributes:
        history: All versions by subject, oldest first.
        newest: The newest version of each event type, by the type's name.
    """

    def __init__(self, schemas: Iterable[EventSchema] = ()) -> None:
        """
        Collect the schemas.

        Raises:
            EventSchemaError: Two schemas have the same version, or two subjects have
                the same event type.
        """
        # Packages and folders may have the same schemas.
        distinct = dict.fromkeys(schemas)
        self.history = tuple(sorted(distinct, key=lambda s: (s.subject, s.version)))
        self.newest: Mapping[str, EventSchema] = MappingProxyType(
            {schema.name: schema for schema in self.history}
        )
        _refuse_ambiguous(self.history)

    @classmethod
    def from_folder(cls, folder: str | Path | Traversable) -> "EventSchemas":
        """
        Read the schema files of a folder.

        Raises:
            EventSchemaError: The folder has no schema, or a schema that cannot be used.
        """
        place = Path(folder) if isinstance(folder, str) else folder
        return cls.from_files(read_files(place))

    @classmethod
    def from_files(cls, files: Iterable[SchemaFile]) -> "EventSchemas":
        """
        Collect the events of schema files, with the types that they share.

        Raises:
            EventSchemaError: A schema cannot be used.
        """
        return cls(make_schema(f.text, f.version, f.name) for f in embedded(files))

    def __or__(self, other: "EventSchemas") -> "EventSchemas":
        return EventSchemas((*self.history, *other.history))

    def check(self, event_type: str, payload: Mapping[str, Any]) -> EventSchema:
        """
        Return the schema that a payload follows.

        Raises:
            InvalidEventError: The event type has no schema, or a field does not match
                it; the error names the first such field.
        """
        schema = self.newest.get(event_type)
        if schema is None:
            known = ", ".join(self.newest) or "none"
            reason = f"has no schema; event types with a schema: {known}"
            raise InvalidEventError(event_type, "", reason)
        mismatch = schema.check(payload)
        if mismatch is not None:
            raise InvalidEventError(event_type, mismatch.field, mismatch.reason)
        return schema


@functools.cache
def installed_schemas() -> EventSchemas:
    """
    Return the event schemas of all installed packages that declare any.

    Raises:
        EventSchemaError: A declared package has no schemas, or a schema that cannot be
            used.
    """
    found = EventSchemas()
    for point in metadata.entry_points(group=ENTRY_POINTS):
        try:
            folder = resources.files(point.module)
        # Up to Python 3.11, a TypeError means that the module is not a package.
        except (ImportError, TypeError) as error:
            message = f"entry point {point.name} of {ENTRY_POINTS}: {error}"
            raise EventSchemaError(message) from error
        found |= EventSchemas.from_folder(folder)
    return found


def make_schema(text: str, version: int = 1, place: str = "schema") -> EventSchema:
    """
    Make an event schema from its text.

    Args:
        text: An Avro record as JSON.
        version: Counts from 1.
        place: The location that errors name.

    Raises:
        EventSchemaError: The text is not the schema of a record, or uses an unknown
            type or one without a JSON form.
    """
    try:
        parsed = fastavro.parse_schema(json.loads(text))
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            message = f"{place}: an event schema must be a record"
            raise EventSchemaError(message)
        check = compile_check(parsed)
    except UnknownType as error:
        message = (
            f"{place}: the schema does not define type {error}: name it in references "
            "with its version, if it has a file of its own"
        )
        raise EventSchemaError(message) from error
    except (
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
        SchemaParseException,
    ) as error:
        message = f"{place}: the schema cannot be read: {error}"
        raise EventSchemaError(message) from error
    subject = str(parsed["name"])
    return EventSchema(
        name=subject.rpartition(".")[2],
        version=version,
        subject=subject,
        text=text,
        parsed=MappingProxyType(parsed),
        check=check,
    )


def _refuse_ambiguous(history: Iterable[EventSchema]) -> None:
    """Refuse a version that occurs twice, and an event type with two subjects."""
    versions: set[str] = set()
    subjects: dict[str, str] = {}
    for schema in history:
        if schema.reference in versions:
            message = f"{schema.reference}: two schemas have this version"
            raise EventSchemaError(message)
        versions.add(schema.reference)
        other = subjects.setdefault(schema.name, schema.subject)
        if other != schema.subject:
            message = f"{other} and {schema.subject} are schemas of one event type"
            raise EventSchemaError(message)
