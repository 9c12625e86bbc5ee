"""
An index of explicit fields, and no others; what each Postgres type is searched as.

Exact values stay exact in ``_source``, which holds the row as it came; the field types
below only say how it is searched. ``ignore_malformed`` because ``infinity``, ``NaN``
and years that the index cannot hold are values of the row all the same. A numeric is a
keyword, as doubles would lose digits, with a double beside it for ranges.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

Properties: TypeAlias = Mapping[str, Any]

POSITION_FIELD: Final = "_position"
DELETED_FIELD: Final = "_deleted"

# Half of the budget of one second that a document may take to be found.
REFRESH_INTERVAL: Final = "500ms"

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
    """Return the field for a Postgres type; one not named above is a keyword."""
    return _FIELD_OF_TYPE.get(type_name, KEYWORD)


def with_own(fields: Properties) -> Properties:
    """Add the sink's own fields."""
    own = {POSITION_FIELD: {"type": "keyword"}, DELETED_FIELD: {"type": "boolean"}}
    return {**fields, **own}


def index_body(fields: Properties, alias: str) -> dict[str, Any]:
    """Return what creates an index of these fields behind its alias."""
    return {
        "settings": {
            "index": {
                "number_of_shards": 1,
                "auto_expand_replicas": "0-1",
                "refresh_interval": REFRESH_INTERVAL,
            }
        },
        "mappings": {"dynamic": "strict", "properties": fields},
        "aliases": {alias: alias_body()},
    }


def alias_body() -> dict[str, Any]:
    """Return the alias: it hides deleted rows from searches, and takes the writes."""
    hidden = {"bool": {"must_not": {"term": {DELETED_FIELD: True}}}}
    return {"filter": hidden, "is_write_index": True}


def first_index(route: str) -> str:
    """Name the index behind a route's alias; a rebuild counts up."""
    return f"{route}-1"
