"""
The fields of an aggregate's document: from its events' schemas, then from the route.

Every event of an aggregate carries its state, so the document has the fields of all of
them. Lists of records are ``nested``: each line of an order is searched as a whole,
not its products and quantities apart. What has no one form (a map, a union of several
types, a record inside itself) is kept and not searched. Pure.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from towpath.schemas.events import EventSchema
from towpath.settings import Route
from towpath.sinks.errors import DocumentFieldsError
from towpath.sinks.search.mapping import (
    DOUBLE,
    KEYWORD,
    STORED_ONLY,
    TEXT,
    Properties,
    field_of,
)

# Takes any JSON value, and looks into none.
UNSEARCHED: Final = {"type": "object", "enabled": False}

_FIELD_OF_PRIMITIVE: Final[Mapping[str, Properties]] = MappingProxyType(
    {
        "string": TEXT,
        "boolean": {"type": "boolean"},
        "int": {"type": "integer"},
        "long": {"type": "long"},
        "float": DOUBLE,
        "double": DOUBLE,
        "enum": KEYWORD,
        "bytes": STORED_ONLY,
        "fixed": STORED_ONLY,
    }
)
_LIST: Final = "[]"


def document_fields(route: Route, schemas: Mapping[str, EventSchema]) -> dict[str, Any]:
    """
    Return the fields of a route's documents.

    Args:
        route: Names the events that carry the state, and fields of its own.
        schemas: The newest schema of each event type.

    Raises:
        DocumentFieldsError: An event has no schema, or two of them disagree.
    """
    fields: dict[str, Any] = {}
    for kind in route.state_types:
        schema = schemas.get(kind)
        if schema is None and not route.fields:
            message = f"{route.name}: the event {kind} has no schema"
            raise DocumentFieldsError(message)
        if schema is not None:
            more = _record(schema.parsed, {})
            fields = _together(fields, more, f"{route.name}: {kind}")
    for path, type_name in route.fields.items():
        _place(fields, path.split("."), type_name)
    return fields


def _record(schema: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record's fields; ``above`` are the named types that it stands in."""
    names = {**above, schema["name"]: None}
    fields = {}
    for field in schema["fields"]:
        fields[field["name"]] = dict(_field(field["type"], names))
    return fields


def _field(schema: Any, names: dict[str, Any]) -> Properties:  # noqa: ANN401 - any Avro
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        return _field(branches[0], names) if len(branches) == 1 else UNSEARCHED
    if isinstance(schema, str):
        known = names.get(schema)
        return known or _FIELD_OF_PRIMITIVE.get(schema, UNSEARCHED)
    kind = schema["type"]
    if kind == "array":
        inner = _field(schema["items"], names)
        is_record = "properties" in inner
        return {**inner, "type": "nested"} if is_record else inner
    found: Properties
    if kind == "record":
        found = {"properties": _record(schema, names)}
    else:
        found = _FIELD_OF_PRIMITIVE.get(kind, UNSEARCHED)
    if "name" in schema:
        # Another field of the same record may say it by its name alone.
        names[schema["name"]] = found
    return found


def _together(one: Properties, other: Properties, where: str) -> dict[str, Any]:
    """Return the fields of both; what both have must be the same."""
    fields = {**one, **other}
    for name in one.keys() & other.keys():
        a, b = one[name], other[name]
        if a == b:
            continue
        if a.get("type") != b.get("type") or not {"properties"} <= a.keys() & b.keys():
            message = f"{where}: its field {name} is another than in other events"
            raise DocumentFieldsError(message)
        below = _together(a["properties"], b["properties"], f"{where}.{name}")
        fields[name] = {**a, "properties": below}
    return fields


def _place(fields: dict[str, Any], path: Sequence[str], type_name: str) -> None:
    """Set the field at a path, whatever stood there."""
    step, *rest = path
    name = step.removesuffix(_LIST)
    if not rest:
        searched = field_of(type_name)
        fields[name] = UNSEARCHED if searched is STORED_ONLY else searched
        return
    inner = dict(fields.get(name, {}))
    below = {**inner.get("properties", {})}
    _place(below, rest, type_name)
    kind = {"type": "nested"} if step.endswith(_LIST) else {}
    fields[name] = {**kind, "properties": below}
