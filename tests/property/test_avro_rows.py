"""A row has the same content in Avro as in JSON, for any values and modes."""

import base64
import io
import json
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from towpath.relay.encode.codecs.codec import EnvelopeFacts, TableNames
from towpath.relay.encode.codecs.connect_schema import Field, row_schema
from towpath.relay.encode.codecs.factory import CodecFactory
from towpath.relay.encode.types.choose import FormChooser
from towpath.relay.encode.types.form import Schema, TypeFacts, TypeField, modes_of
from towpath.relay.wal.messages import Row
from towpath.settings.relay import Relay
from towpath.settings.rows import RecordFormat

NAMES = TableNames("towpath", "db", "shop", "line", "towpath.shop.line")
FACTS = EnvelopeFacts(b"c", 5, 7, b"false", 9, 120, 160, None, None, None)
TYPES = {
    1007: TypeFacts("_int4", "integer[]", category="A", element_oid=23),
    1009: TypeFacts("_text", "text[]", category="A", element_oid=25),
    9001: TypeFacts("hstore", "hstore"),
    9002: TypeFacts(
        "part",
        "shop.part",
        kind="c",
        fields=(TypeField("n o", 23, -1), TypeField("note", 25, -1)),
    ),
    9003: TypeFacts("mood", "shop.mood", kind="e", labels=("sad", "ok")),
}
NUMERIC_12_2 = (12 << 16 | 2) + 4

WORDS = st.text("abž😀 _-", max_size=5)
INTEGERS = st.integers(-(2**31), 2**31 - 1)
FLOATS = st.floats().map(
    lambda x: repr(x).replace("inf", "Infinity").replace("nan", "NaN")
)
CENTS = st.integers(-(10**11), 10**11).map(lambda n: f"{n / 100:.2f}")
LISTS = st.lists(st.none() | INTEGERS, max_size=3).map(
    lambda found: "{" + ",".join("NULL" if n is None else str(n) for n in found) + "}"
)
TEXTS = st.lists(WORDS, max_size=3).map(
    lambda found: "{" + ",".join(f'"{text}"' for text in found) + "}"
)
PAIRS = st.dictionaries(WORDS, WORDS, max_size=2).map(
    lambda found: ", ".join(f'"{key}"=>"{value}"' for key, value in found.items())
)
INSTANTS = st.datetimes().map(lambda at: f"{at.isoformat(' ', 'microseconds')}+00")

# The texts that Postgres writes for columns, by type OID and modifier.
COLUMNS: tuple[tuple[int, int, st.SearchStrategy[str]], ...] = (
    (23, -1, INTEGERS.map(str)),
    (16, -1, st.sampled_from("tf")),
    (21, -1, st.integers(-(2**15), 2**15 - 1).map(str)),
    (20, -1, st.integers(-(2**63), 2**63 - 1).map(str)),
    (701, -1, FLOATS),
    (
        25,
        -1,
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    ),
    (17, -1, st.binary(max_size=9).map(lambda data: "\\x" + data.hex())),
    (1700, NUMERIC_12_2, CENTS | st.just("NaN")),
    (1700, -1, CENTS),
    (1184, -1, INSTANTS),
    (1007, -1, LISTS),
    (1009, -1, TEXTS),
    (9001, -1, PAIRS),
    (9002, -1, st.tuples(INTEGERS, WORDS).map(lambda part: f'({part[0]},"{part[1]}")')),
    (9003, -1, st.sampled_from(["sad", "ok"])),
)
KEYS = st.just(("1", *(None for _ in COLUMNS[1:])))
ROWS = (
    st.tuples(COLUMNS[0][2], *(st.none() | texts for _, _, texts in COLUMNS[1:])) | KEYS
)
RELAYS = st.sampled_from(
    [
        Relay.model_validate({"preset": preset, "rows": {"format": "avro", **modes}})
        for preset in ("towpath", "debezium")
        for modes in ({}, {"hstore": "map", "decimals": "double", "binaries": "hex"})
    ]
)


def fields(relay: Relay) -> list[Field]:
    """Choose the columns' forms; the first column is the key."""
    forms = FormChooser(TYPES, modes_of(relay), lambda _: None)
    chosen = [forms.of(oid, typmod) for oid, typmod, _ in COLUMNS]
    return [
        Field(at, f"c{at}", form, is_nullable=at > 0)
        for at, form in enumerate(chosen)
        if form is not None
    ]


def from_json(schema: Schema, value: Any) -> Any:
    """Convert a JSON value according to its schema."""
    if value is None:
        return None
    if schema.kind == "struct":
        return {
            name.replace(" ", "_"): from_json(inner, value[name])
            for name, inner in schema.fields
        }
    if schema.kind == "array" and schema.items:
        return [from_json(schema.items, entry) for entry in value]
    if schema.kind == "bytes":
        return base64.b64decode(value)
    return repr(float(value)) if schema.kind == "double" else value


def comparable(value: Any) -> Any:
    """Make Avro values comparable, because NaN differs from itself."""
    if isinstance(value, dict):
        return {name: comparable(entry) for name, entry in value.items()}
    return repr(value) if isinstance(value, float) else value


def without_logical_types(found: dict[str, Any]) -> dict[str, Any]:
    """Make a reader return the written values without their logical types."""
    found.pop("logicalType", None)
    return found


@given(RELAYS, ROWS)
def test_avro_and_json_rows_are_equal(relay: Relay, texts: tuple[str | None, ...]):
    """
    A key and a row read back from Avro equal the same key and row in JSON.
    """
    schemas: dict[str, str] = {}

    def register(subject: str, schema: str) -> int:
        schemas[subject] = schema
        return len(schemas)

    def read(subject: str, data: bytes | None) -> Any:
        text = schemas[f"{NAMES.topic}-{subject}"]
        schema = json.loads(text, object_hook=without_logical_types)
        source = io.BytesIO((data or b"")[5:])
        return fastavro.schemaless_reader(source, fastavro.parse_schema(schema), None)

    columns = fields(relay)
    rows = relay.rows.model_copy(update={"format": RecordFormat.JSON})
    avro = CodecFactory(relay, register).make(NAMES, columns[:1], columns)
    plain = CodecFactory(relay.model_copy(update={"rows": rows}), register).make(
        NAMES, columns[:1], columns
    )
    row: Row = tuple(None if text is None else text.encode() for text in texts)
    envelope = json.loads(plain.value(None, row, FACTS, is_full=False))
    schema = row_schema(NAMES, columns[:1], columns)

    assert (
        json.loads(plain.key(row) or b""),
        from_json(schema, envelope["after"]),
    ) == (
        read("key", avro.key(row)),
        comparable(read("value", avro.value(None, row, FACTS, is_full=False))["after"]),
    )
