"""
An index of explicit fields, and no others; what each Postgres type is searched as.

Exact values stay exact in ``_source``, which holds the row as it came; the field types
below only say how it is searched. ``ignore_malformed`` because ``infinity``, ``NaN``
and years that the index cannot hold are values of the row all the same. A numeric is a
keyword, as doubles would lose digits, with a double beside it for ranges.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from towpath.settings import SearchOptions

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

# What an index remembers beside its fields: its floor, and the snapshot that fills it,
# and the ids of the indexes before it, whose place it takes.
FLOOR_MEMO: Final = "towpath_floor"
SNAPSHOT_MEMO: Final = "towpath_snapshot"
FOLLOWS_MEMO: Final = "towpath_follows"

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
# Ranges of positions are looked for, and nothing sorts by them: a value of its own for
# each document is dear to keep in columns, a twelfth of all that a document costs.
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
    Return the field for a Postgres type; one not named above is a keyword.

    Every field may hold a list, so an array is searched as its elements are.
    """
    return _FIELD_OF_TYPE.get(type_name.removesuffix("[]"), KEYWORD)


def unfit_name(column: str) -> str:
    """Say why no field of an index can have a column's name; empty: one can."""
    if "." in column:
        return "has a dot, which an index takes for a path"
    if not column.strip():
        return "is blank, which no field of an index may be"
    if column in _META_FIELDS:
        return "is that of a field that every index has"
    return ""


def with_own(fields: Properties) -> Properties:
    """Add the sink's own fields."""
    own = {POSITION_FIELD: _POSITION, DELETED_FIELD: {"type": "boolean"}}
    return {**fields, **own}


def pieces(fields: Properties) -> Iterator[tuple[str, dict[str, Any]]]:
    """
    Take fields apart: each innermost one by its path, in what it stands in.

    One that cannot be changed then does not keep its neighbours back.
    """
    for name, field in fields.items():
        inner = field.get("properties")
        if not inner:
            yield name, {name: field}
            continue
        frame = {key: said for key, said in field.items() if key != "properties"}
        for path, piece in pieces(inner):
            yield f"{name}.{path}", {name: {**frame, "properties": piece}}


def field_at(fields: Properties, path: str) -> Properties | None:
    """Find a field by its path, if there is one."""
    name, _, rest = path.partition(".")
    found: Properties | None = fields.get(name)
    if found is None or not rest:
        return found
    return field_at(found.get("properties", {}), rest)


def index_body(
    fields: Properties, options: SearchOptions, meta: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what creates an index of these fields, without its alias."""
    index = {
        "number_of_shards": options.shards,
        "refresh_interval": interval(options.refresh_ms),
        **replication(options),
    }
    mappings = {"dynamic": "strict", "properties": fields, "_meta": meta}
    return {"settings": {"index": index}, "mappings": mappings}


def is_own(mappings: Mapping[str, Any]) -> bool:
    """Tell whether a sink has made an index, by its mappings."""
    position = mappings.get("properties", {}).get(POSITION_FIELD, {})
    return (mappings.get("dynamic"), position.get("type")) == ("strict", "keyword")


def interval(time_ms: int) -> str:
    """Write a time as an index keeps it."""
    return f"{time_ms}ms"


def replication(options: SearchOptions) -> dict[str, Any]:
    """Return how often an index is there; it may be told at any time."""
    if options.replicas < 0:
        return {"auto_expand_replicas": "0-1"}
    return {"auto_expand_replicas": False, "number_of_replicas": options.replicas}


def alias_body() -> dict[str, Any]:
    """Return the alias: it hides deleted rows from searches, and takes the writes."""
    hidden = {"bool": {"must_not": {"term": {DELETED_FIELD: True}}}}
    return {"filter": hidden, "is_write_index": True}


def index_name(route: str, number: int = 1) -> str:
    """Name an index behind a route's alias; each rebuild counts up."""
    return f"{route}-{number}"


def number_of(index: str) -> int:
    """Return the number of an index; what bears none counts as the first."""
    number = index.rpartition("-")[2]
    return int(number) if number.isdecimal() else 1


def next_alias(route: str) -> str:
    """Name the alias of the index that a rebuild fills."""
    return f"{route}-next"
