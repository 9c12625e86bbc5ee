"""
Derive the explicit fields of an index from tables and event schemas.

``_source`` keeps the row as it was published; the field types below only define how it
is searched. ``ignore_malformed`` is set because a row may contain ``infinity``, ``NaN``
and years that OpenSearch cannot represent. A numeric is a keyword with a double as a
subfield for ranges, because a double alone would lose digits.

An aggregate's document has the fields that the route adds, and those of the schemas of
all ``state_types``, because each of these events carries the whole state. Lists of
records are ``nested``: each line of an order is searched as a whole, not its products
and quantities separately. A value without a single type (a map, a union of several
types, a recursive record) is stored, but not searched.
"""

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from towpath.schemas.events import EventSchema, EventSchemas, installed_schemas
from towpath.settings import Route, RouteKind, SearchOptions
from towpath.sinks.errors import DocumentFieldsError, KeylessTableError
from towpath.sinks.ports import RelationSource

Properties: TypeAlias = Mapping[str, Any]

POSITION_FIELD: Final = "_position"
DELETED_FIELD: Final = "_deleted"
_META_FIELDS: Final = frozenset(
    {
        *("_id", "_index", "_source", "_routing", "_field_names", "_ignored", "_type"),
        *("_nested_path", "_seq_no", "_version", "_primary_term", "_doc_count"),
        *(POSITION_FIELD, DELETED_FIELD),
    }
)

# Metadata of an index: its floor, the snapshot that fills it, and the ids of the
# indexes that it replaces.
FLOOR_META: Final = "towpath_floor"
SNAPSHOT_META: Final = "towpath_snapshot"
REPLACED_IDS_META: Final = "towpath_follows"

# Lucene refuses terms above 32,766 bytes, that is, 8,191 characters of four bytes.
_LONGEST_KEYWORD: Final = 8191
_LONGEST_SORTED_TEXT: Final = 256

KEYWORD: Final = {"type": "keyword", "ignore_above": _LONGEST_KEYWORD}
TEXT: Final = {
    "type": "text",
    "fields": {"keyword": {"type": "keyword", "ignore_above": _LONGEST_SORTED_TEXT}},
}
_DATE: Final = {
    "type": "date",
    "format": "strict_date_optional_time",
    "ignore_malformed": True,
}
DOUBLE: Final = {"type": "double", "ignore_malformed": True}
_NUMERIC: Final = KEYWORD | {"fields": {"number": DOUBLE}}
# Positions are searched by range, and never sorted. Doc values that are unique to
# each document are expensive: a twelfth of a document's cost.
_POSITION: Final = {"type": "keyword", "doc_values": False}
STORED_ONLY: Final = {"type": "keyword", "index": False, "doc_values": False}

_FIELD_OF_TYPE: Final[Mapping[str, Properties]] = MappingProxyType(
    {
        "smallint": {"type": "short"},
        "integer": {"type": "integer"},
        "bigint": {"type": "long"},
        "oid": {"type": "long"},
        "boolean": {"type": "boolean"},
        "real": DOUBLE,
        "double precision": DOUBLE,
        "numeric": _NUMERIC,
        "text": TEXT,
        "character varying": TEXT,
        "character": TEXT,
        "uuid": KEYWORD,
        "date": _DATE,
        "timestamp without time zone": _DATE,
        "timestamp with time zone": _DATE,
        "json": STORED_ONLY,
        "jsonb": STORED_ONLY,
        "bytea": STORED_ONLY,
    }
)


def field_of(type_name: str) -> Properties:
    """
    Return the field for a Postgres type; a type not listed above is a keyword.

    Every field can have several values, so an array is searched like its elements.
    """
    return _FIELD_OF_TYPE.get(type_name.removesuffix("[]"), KEYWORD)


def unfit_name(column: str) -> str:
    """Return why no field can have a column's name; empty if one can."""
    if "." in column:
        return "has a dot, which an index reads as a path"
    if not column.strip():
        return "is blank, which an index does not allow"
    if column in _META_FIELDS:
        return "is reserved for a field of every index"
    return ""


def with_sink_fields(fields: Properties) -> Properties:
    """Add the sink's own fields."""
    own = {POSITION_FIELD: _POSITION, DELETED_FIELD: {"type": "boolean"}}
    return {**fields, **own}


def single_fields(fields: Properties) -> Iterator[tuple[str, dict[str, Any]]]:
    """
    Yield the path of each innermost field, and the field within its parent fields.

    Fields are added one by one, so that a field that cannot be changed does not prevent
    changes to other fields.
    """
    for name, field in fields.items():
        inner = field.get("properties")
        if not inner:
            yield name, {name: field}
            continue
        frame = {key: value for key, value in field.items() if key != "properties"}
        for path, piece in single_fields(inner):
            yield f"{name}.{path}", {name: {**frame, "properties": piece}}


def field_at(fields: Properties, path: str) -> Properties | None:
    """Return the field at a path, if there is one."""
    name, _, rest = path.partition(".")
    found: Properties | None = fields.get(name)
    if found is None or not rest:
        return found
    return field_at(found.get("properties", {}), rest)


def index_body(
    fields: Properties, options: SearchOptions, meta: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the request body that creates an index without an alias."""
    index = {
        "number_of_shards": options.shards,
        "refresh_interval": interval(options.refresh_ms),
        **replication(options),
    }
    mappings = {"dynamic": "strict", "properties": fields, "_meta": meta}
    return {"settings": {"index": index}, "mappings": mappings}


def was_created_by_sink(mappings: Mapping[str, Any]) -> bool:
    """Return whether a sink has created an index, judged by its mappings."""
    position = mappings.get("properties", {}).get(POSITION_FIELD, {})
    return (mappings.get("dynamic"), position.get("type")) == ("strict", "keyword")


def interval(time_ms: int) -> str:
    """Format an interval as the settings of an index require."""
    return f"{time_ms}ms"


def replication(options: SearchOptions) -> dict[str, Any]:
    """Return the replica settings, which can be changed at any time."""
    if options.replicas < 0:
        return {"auto_expand_replicas": "0-1"}
    return {"auto_expand_replicas": False, "number_of_replicas": options.replicas}


def alias_body() -> dict[str, Any]:
    """Return the alias, which hides deleted rows from searches, and accepts writes."""
    hidden = {"bool": {"must_not": {"term": {DELETED_FIELD: True}}}}
    return {"filter": hidden, "is_write_index": True}


def index_name(route: str, number: int = 1) -> str:
    """Return the name of a route's index; each rebuild uses the next number."""
    return f"{route}-{number}"


def number_of(index: str) -> int:
    """Return the number in an index's name; 1 if it has none."""
    number = index.rpartition("-")[2]
    return int(number) if number.isdecimal() else 1


def next_alias(route: str) -> str:
    """Return the alias of the index that a rebuild fills."""
    return f"{route}-next"


# A field for any JSON value; it is stored, but not searched.
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
        route: The route, with the events that carry the state, and additional fields.
        schemas: The newest schema of each event type.

    Raises:
        DocumentFieldsError: An event has no schema and the route adds no fields, or two
            schemas disagree.
    """
    fields: dict[str, Any] = {}
    for kind in route.state_types:
        schema = schemas.get(kind)
        if schema is None and not route.fields:
            message = f"{route.name}: the event {kind} has no schema"
            raise DocumentFieldsError(message)
        if schema is not None:
            types = dict(_named_types(schema.parsed))
            more = _record(schema.parsed, types, frozenset())
            fields = _merged_fields(fields, more, f"{route.name}: {kind}")
    for path, type_name in route.fields.items():
        _set_field(fields, path.split("."), type_name)
    return fields


def _named_types(schema: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:  # noqa: ANN401 - any Avro
    """Yield each type that a schema defines, with its name."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _named_types(branch)
    elif isinstance(schema, Mapping):
        if "name" in schema:
            yield schema["name"], schema
        field_types = [field["type"] for field in schema.get("fields", ())]
        for inner in (*field_types, schema.get("items"), schema.get("values")):
            yield from _named_types(inner)


def _record(
    schema: Mapping[str, Any], types: Mapping[str, Any], above: frozenset[str]
) -> dict[str, Any]:
    """
    Return a record's fields.

    Args:
        schema: The record.
        types: The types that its event defines, by name; a field may refer to a type by
            its name only.
        above: The names of the records that contain it.
    """
    above |= {schema["name"]}
    return {
        field["name"]: dict(_field(field["type"], types, above))
        for field in schema["fields"]
    }


def _field(
    schema: Any,  # noqa: ANN401 - any Avro
    types: Mapping[str, Any],
    above: frozenset[str],
) -> Properties:
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        is_single = len(branches) == 1
        return _field(branches[0], types, above) if is_single else UNSEARCHED
    if isinstance(schema, str):
        if schema in types and schema not in above:
            return _field(types[schema], types, above)
        return _FIELD_OF_PRIMITIVE.get(schema, UNSEARCHED)
    kind = schema["type"]
    if kind == "array":
        inner = _field(schema["items"], types, above)
        is_record = "properties" in inner
        return {**inner, "type": "nested"} if is_record else inner
    if kind == "record":
        return {"properties": _record(schema, types, above)}
    is_decimal = schema.get("logicalType") == "decimal"
    return _NUMERIC if is_decimal else _FIELD_OF_PRIMITIVE.get(kind, UNSEARCHED)


def _merged_fields(one: Properties, other: Properties, where: str) -> dict[str, Any]:
    """Return the fields of both; common fields must not differ, except in subfields."""
    fields = {**one, **other}
    for name in one.keys() & other.keys():
        a, b = one[name], other[name]
        if a == b:
            continue
        if a.get("type") != b.get("type") or not {"properties"} <= a.keys() & b.keys():
            message = f"{where}: its field {name} differs from that of other events"
            raise DocumentFieldsError(message)
        below = _merged_fields(a["properties"], b["properties"], f"{where}.{name}")
        fields[name] = {**a, "properties": below}
    return fields


def _set_field(fields: dict[str, Any], path: Sequence[str], type_name: str) -> None:
    """Set the field at a path, replacing any existing field."""
    step, *rest = path
    name = step.removesuffix(_LIST)
    if not rest:
        searched = field_of(type_name)
        fields[name] = UNSEARCHED if searched is STORED_ONLY else searched
        return
    inner = dict(fields.get(name, {}))
    below = {**inner.get("properties", {})}
    _set_field(below, rest, type_name)
    kind = {"type": "nested"} if step.endswith(_LIST) else {}
    fields[name] = {**kind, "properties": below}


class DocumentShape(NamedTuple):
    """
    The fields of a route's documents.

    Attributes:
        name: The source of the fields, as text.
        fields: The fields.
        since: The position from which the fields are valid; empty if unknown.
    """

    name: str
    fields: Properties
    since: str = ""


class FieldSource(Protocol):
    """The source of the fields of every route of a sink."""

    def shape_of(self, route: Route) -> DocumentShape:
        """
        Return the newest known fields, with the sink's own.

        Raises:
            UnavailableError: The fields are not known yet.
            HaltError: The route cannot have fields.
        """

    def refresh(self) -> None:
        """
        Read newer announcements; to be called when a document does not fit.

        Raises:
            UnavailableError: The announcements cannot be read now.
        """


def event_schemas(
    options: SearchOptions, routes: Iterable[Route]
) -> Mapping[str, EventSchema]:
    """
    Return the newest event schemas from installed packages and the sink's folders.

    They are read only if a route has documents of aggregates.

    Raises:
        EventSchemaError: A folder has no schema, or one that cannot be used.
    """
    if all(route.kind is not RouteKind.AGGREGATE for route in routes):
        return {}
    folders = map(EventSchemas.from_folder, options.event_schemas)
    return functools.reduce(operator.or_, folders, installed_schemas()).newest


class RouteFields:
    """Takes tables' fields from announcements, and aggregates' fields from schemas."""

    def __init__(
        self, relations: RelationSource, schemas: Mapping[str, EventSchema]
    ) -> None:
        self._relations = relations
        self._schemas = schemas

    def shape_of(self, route: Route) -> DocumentShape:
        """
        Return the fields of a route's documents.

        Raises:
            ShapeUnknownError: The relay has not announced the table yet.
            KeylessTableError: The table has no primary key.
            DocumentFieldsError: An event has no schema, or two schemas disagree.
        """
        if route.kind is RouteKind.AGGREGATE:
            fields = document_fields(route, self._schemas)
            return DocumentShape(
                f"the events of {route.topic}", with_sink_fields(fields)
            )
        shape = self._relations.shape(route.topic)
        if not shape.key:
            message = f"{shape.name} has no primary key, so {route.name} stays empty"
            raise KeylessTableError(message)
        columns = {
            column.name: UNSEARCHED if column.is_object else field_of(column.type)
            for column in shape.columns
        }
        return DocumentShape(
            f"the table {shape.name}", with_sink_fields(columns), shape.position
        )

    def refresh(self) -> None:
        """Read the relay's newest announcements; event schemas are not read again."""
        self._relations.refresh()
