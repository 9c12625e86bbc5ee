"""Any value written as Avro binary is read back by a different implementation."""

import io
import json
import math
from collections.abc import Mapping
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from towpath.relay.encode.codecs.avro_codec import writer
from towpath.relay.encode.codecs.connect_schema import sanitized
from towpath.relay.encode.codecs.factory import avro_text
from towpath.relay.encode.types.form import Schema

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int16": INT16,
    "int32": INT32,
    "int64": INT64,
    "float": st.floats(width=32),
    "double": st.floats(),
    "string": st.text(),
    "bytes": st.binary(),
}


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> Schema:
    """Draw a schema with at most the given nesting depth."""
    nested = ["array", "map", "struct"] if depth else []
    kind = draw(st.sampled_from([*VALUES, *nested]))
    is_optional = draw(st.booleans())
    if kind in {"array", "map"}:
        items = draw(schemas(depth=depth - 1))
        return Schema(kind, is_optional=is_optional, items=items)
    if kind == "struct":
        names = draw(st.lists(st.text(min_size=1), max_size=3, unique_by=sanitized))
        fields = tuple((name, draw(schemas(depth=depth - 1))) for name in names)
        return Schema("struct", is_optional=is_optional, fields=fields)
    return Schema(kind, is_optional=is_optional)


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """Draw values that fit a schema."""
    plain: st.SearchStrategy[Any]
    if schema.kind == "struct":
        plain = st.fixed_dictionaries(
            {name: values(inner) for name, inner in schema.fields}
        )
    elif schema.kind == "array" and schema.items:
        plain = st.lists(values(schema.items), max_size=3)
    elif schema.kind == "map" and schema.items:
        plain = st.dictionaries(st.text(), values(schema.items), max_size=3)
    else:
        plain = VALUES[schema.kind]
    return st.none() | plain if schema.is_optional else plain


def renamed(schema: Schema, value: Any) -> Any:
    """Give a value the names that its schema has in Avro."""
    if value is None:
        return None
    if schema.kind == "struct":
        return {
            sanitized(name): renamed(inner, value[name])
            for name, inner in schema.fields
        }
    if schema.kind == "array" and schema.items:
        return [renamed(schema.items, entry) for entry in value]
    if schema.kind == "map" and schema.items:
        return {name: renamed(schema.items, entry) for name, entry in value.items()}
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def comparable(value: Any) -> Any:
    """Make values comparable, because NaN differs from itself."""
    if isinstance(value, dict):
        return {name: comparable(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [comparable(entry) for entry in value]
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


@st.composite
def records(draw: st.DrawFn) -> tuple[Schema, dict[str, Any]]:
    """Draw a record's schema and a value that fits it."""
    names = draw(st.lists(st.text(min_size=1), max_size=4, unique_by=sanitized))
    fields = tuple((name, draw(schemas())) for name in names)
    schema = Schema("struct", name="towpath.Row", fields=fields)
    return schema, draw(values(schema))


@given(records())
def test_avro_values_read_back_the_same(case: tuple[Schema, dict[str, Any]]):
    """
    Fastavro reads every value of every schema, and no byte is left over.
    """
    schema, value = case
    source = io.BytesIO(writer(schema)(value))
    document = fastavro.parse_schema(json.loads(avro_text(schema)))
    found = fastavro.schemaless_reader(source, document, None)

    assert (renamed(schema, value), b"") == (comparable(found), source.read())
