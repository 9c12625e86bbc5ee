"""
From a table's shape to an index: explicit fields, and no others.

Exact values stay exact in ``_source``, which holds the row as it came; the field types
below only say how it is searched. ``ignore_malformed`` because ``infinity``, ``NaN``
and years that the index cannot hold are values of the row all the same. A numeric is a
keyword, as doubles would lose digits, with a double beside it for ranges.
"""

from types import MappingProxyType
from typing import Any, Final

from towpath.sinks.relations import RelationShape

POSITION_FIELD: Final = "_position"
DELETED_FIELD: Final = "_deleted"

# Half of the budget of one second that a document may take to be found.
REFRESH_INTERVAL: Final = "500ms"

# Lucene refuses terms above 32,766 bytes, that is, 8,191 characters of four bytes.
_LONGEST_KEYWORD: Final = 8191
_LONGEST_SORTED_TEXT: Final = 256

_KEYWORD: Final = {"type": "keyword", "ignore_above": _LONGEST_KEYWORD}
_TEXT: Final = {
    "type": "text",
    "fields": {"keyword": {"type": "keyword", "ignore_above": _LONGEST_SORTED_TEXT}},
}
_DATE: Final = {
    "type": "date",
    "format": "strict_date_optional_time",
    "ignore_malformed": True,
}
_DOUBLE: Final = {"type": "double", "ignore_malformed": True}
_NUMERIC: Final = _KEYWORD | {"fields": {"number": _DOUBLE}}
_STORED_ONLY: Final = {"type": "keyword", "index": False, "doc_values": False}

_FIELD_OF_TYPE: Final = MappingProxyType(
    {
        "smallint": {"type": "short"},
        "integer": {"type": "integer"},
        "bigint": {"type": "long"},
        "oid": {"type": "long"},
        "boolean": {"type": "boolean"},
        "real": _DOUBLE,
        "double precision": _DOUBLE,
        "numeric": _NUMERIC,
        "text": _TEXT,
        "character varying": _TEXT,
        "character": _TEXT,
        "uuid": _KEYWORD,
        "date": _DATE,
        "timestamp without time zone": _DATE,
        "timestamp with time zone": _DATE,
        "json": _STORED_ONLY,
        "jsonb": _STORED_ONLY,
        "bytea": _STORED_ONLY,
    }
)


def properties(shape: RelationShape) -> dict[str, Any]:
    """Return the fields of the index; a type not named above is a keyword."""
    fields: dict[str, Any] = {
        column.name: _FIELD_OF_TYPE.get(column.type, _KEYWORD)
        for column in shape.columns
    }
    fields[POSITION_FIELD] = {"type": "keyword"}
    fields[DELETED_FIELD] = {"type": "boolean"}
    return fields


def index_body(shape: RelationShape, alias: str) -> dict[str, Any]:
    """Return what creates the index of a table behind its alias."""
    return {
        "settings": {
            "index": {
                "number_of_shards": 1,
                "auto_expand_replicas": "0-1",
                "refresh_interval": REFRESH_INTERVAL,
            }
        },
        "mappings": {"dynamic": "strict", "properties": properties(shape)},
        "aliases": {alias: alias_body()},
    }


def alias_body() -> dict[str, Any]:
    """Return the alias: it hides deleted rows from searches, and takes the writes."""
    hidden = {"bool": {"must_not": {"term": {DELETED_FIELD: True}}}}
    return {"filter": hidden, "is_write_index": True}


def first_index(route: str) -> str:
    """Name the index behind a route's alias; a rebuild counts up."""
    return f"{route}-1"
