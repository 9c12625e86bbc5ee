"""The published columns, their names and forms; and the key."""

import json

import pytest

from towpath.relay.encode.columns import OMITTED, ColumnRules, java_string
from towpath.relay.encode.relations import CatalogFacts, ColumnPlan
from towpath.relay.encode.types.form import TypeFacts
from towpath.relay.errors import NameCollisionError, NotPreparedError
from towpath.relay.wal.messages import Column, Relation
from towpath.settings.relay import Relay

UNKNOWN = 99_999
PEOPLE = Relation(
    oid=7,
    schema="s",
    table="people",
    columns=(
        Column("id", 23),
        Column("name", 1043, 24),
        Column("city", 25),
        Column("age", 23),
        Column("price", 1700, ((10 << 16) | 2) + 4),
    ),
    key=(0,),
)


def plan(relation: Relation = PEOPLE, **rows: object) -> ColumnPlan:
    """Make a plan."""
    facts = CatalogFacts((), {}, frozenset({"id", "name"}))
    return ColumnRules(Relay.model_validate({"rows": rows})).plan(relation, facts)


def values(found: ColumnPlan, **texts: str) -> dict[str, object]:
    """Write columns' texts as JSON and parse them."""
    return {
        field.name: json.loads(field.form.json(texts[field.name].encode()))
        for field in found.columns
        if field.name in texts
    }


@pytest.mark.parametrize(
    ("rows", "published"),
    [
        ({}, ["id", "name", "city", "age", "price"]),
        ({"exclude_columns": [r"s\.people\.(id|age)"]}, ["name", "city", "price"]),
        ({"include_columns": [r"s\.people\.n.*", r".*\.city"]}, ["name", "city"]),
        ({"exclude_columns": [r"people\.age"]}, ["id", "name", "city", "age", "price"]),
    ],
)
def test_column_filters_apply_to_the_value_and_never_to_the_key(
    rows: dict[str, object], published: list[str]
):
    """
    Regular expressions match the whole name; the key keeps its columns.
    """
    found = plan(**rows)

    assert (published, ["id"]) == (
        [field.name for field in found.columns],
        [field.name for field in found.key],
    )


def rule(column: str, form: str, **more: object) -> dict[str, object]:
    """Write a rule for a column."""
    return {"columns": [rf"s\.people\.{column}"], "form": form, **more}


def test_a_hash_is_debeziums_and_no_longer_than_its_column():
    """
    A known test vector: the salted SHA-256 of a text, truncated to varchar(20) (A70).
    """
    mask = [rule("name", "hash", salt="CzQMA0cB5K")]

    assert {"name": "8e68c68edbbac316dfe2"} == values(plan(mask=mask), name="test")


def test_masks_and_truncations_are_as_long_as_configured():
    """
    Asterisks replace any value, even a number; only character types are truncated.
    """
    mask = [
        rule("city", "mask", length=3),
        rule("age", "mask", length=0),
        rule("name", "truncate", length=2),
        rule("price", "truncate", length=2),
    ]
    found = plan(mask=mask)

    assert {"city": "***", "age": "", "name": "žl", "price": "12.34"} == values(
        found, city="Brno", age="7", name="žluť", price="12.34"
    )


def test_a_masked_column_is_unmasked_in_the_key():
    """
    Two keys must not become one, so the key keeps its columns unchanged.
    """
    found = plan(mask=[rule("id", "mask", length=3)])
    (key,) = found.key

    assert (b"41", {"id": "***"}, frozenset({0})) == (
        key.form.json(b"41"),
        values(found, id="41"),
        found.texts,
    )


def test_only_the_first_matching_column_rule_applies():
    """
    Later rules that match the same column are ignored.
    """
    mask = [rule("city", "truncate", length=1), rule(".*", "mask", length=2)]

    assert {"city": "B", "age": "**"} == values(plan(mask=mask), city="Brno", age="7")


@pytest.mark.parametrize("algorithm", ["MD5", "SHA-1", "SHA-512", "SHA3-256", "sha256"])
def test_column_hashes_differ_by_algorithm_and_salt(algorithm: str):
    """
    Each configurable algorithm works, and equal texts have equal hashes.
    """
    salted, other = (
        plan(mask=[rule("city", "hash", algorithm=algorithm, salt=salt)])
        for salt in ("a", "b")
    )
    first, second, third = (
        values(found, city="Brno")["city"] for found in (salted, salted, other)
    )

    assert (True, False) == (first == second, first == third)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("test", b"\xac\xed\x00\x05t\x00\x04test"),
        ("ž", b"\xac\xed\x00\x05t\x00\x02\xc5\xbe"),
        ("😀", b"\xac\xed\x00\x05t\x00\x06\xed\xa0\xbd\xed\xb8\x80"),
    ],
)
def test_hashed_texts_are_serialized_as_java_does(text: str, expected: bytes):
    """
    Characters beyond 16 bits are written as two surrogates of three bytes each.
    """
    assert expected == java_string(text)


def test_a_long_hashed_text_has_an_eight_byte_length():
    """
    Java's object stream has a different mark for texts above 65,535 bytes.
    """
    assert (
        b"\xac\xed\x00\x05|" + (70_000).to_bytes(8, "big")
        == (java_string("x" * 70_000)[:13])
    )


def test_a_configured_key_has_its_own_order_and_may_contain_null():
    """
    Only columns of the table's own key are known to be non-null.
    """
    found = plan(key_columns={"s.people": ["city", "id"]})

    assert [("city", True), ("id", False)] == [
        (field.name, field.is_nullable) for field in found.key
    ]


def test_a_configured_key_without_its_column_is_refused():
    """
    The message names the table and the column.
    """
    with pytest.raises(NotPreparedError, match=r"s\.people: no column nick"):
        plan(key_columns={"s.people": ["nick"]})


def test_schemas_have_postgres_types_if_configured():
    """
    With type, length and scale, a consumer can size its column (T-53).
    """
    found = plan(source_types=[r".*\.(name|price)"])
    parameters = {
        field.name: dict(field.form.schema.parameters) for field in found.columns
    }
    prefix = "__debezium.source.column"

    assert (
        {f"{prefix}.type": "TEXT", f"{prefix}.length": "20", f"{prefix}.name": "name"},
        ("10", "2"),
        {},
    ) == (
        parameters["name"],
        (
            parameters["price"][f"{prefix}.length"],
            parameters["price"][f"{prefix}.scale"],
        ),
        parameters["city"],
    )


def test_column_names_are_adjusted_for_avro():
    """
    Names are always adjusted in Avro, and in JSON if configured.
    """
    odd = Relation(oid=8, schema="s", table="t", columns=(Column("é 1", 23),), key=(0,))
    sanitized, avro, plain = (
        plan(odd, **rows).columns[0].name
        for rows in ({"sanitize_names": True}, {"format": "avro"}, {})
    )

    assert ("__1", "__1", "é 1") == (sanitized, avro, plain)


def test_column_names_that_become_equal_are_refused():
    """
    The two columns could not be distinguished.
    """
    odd = Relation(
        oid=8,
        schema="s",
        table="t",
        columns=(Column("a b", 23), Column("a-b", 23)),
        key=(),
    )

    with pytest.raises(NameCollisionError):
        plan(odd, sanitize_names=True)


@pytest.mark.parametrize(
    "rows",
    [
        {"exclude_columns": [r"s\.t\.a-b"]},
        {"include_columns": [r"s\.t\.a b"]},
        {"unknown_types": "omit"},
    ],
)
def test_names_of_unpublished_columns_may_be_reused(rows: dict[str, object]):
    """
    The error's remedy is to exclude one of two columns with the same adjusted name.
    """
    odd = Relation(
        oid=8,
        schema="s",
        table="t",
        columns=(Column("id", 23), Column("a b", 23), Column("a-b", UNKNOWN)),
        key=(0,),
    )
    types = {UNKNOWN: TypeFacts("never", "s.never")}
    facts = CatalogFacts((), {}, frozenset(), types=types)
    relay = Relay.model_validate({"rows": {"sanitize_names": True, **rows}})
    found = ColumnRules(relay).plan(odd, facts)

    assert "a_b" in [field.name for field in found.columns]


def test_an_excluded_column_of_the_key_keeps_its_name():
    """
    The key keeps its columns, so two with the same adjusted name are still refused.
    """
    columns = (Column("a b", 23), Column("a-b", 23))
    odd = Relation(oid=8, schema="s", table="t", columns=columns, key=(0,))

    with pytest.raises(NameCollisionError):
        plan(odd, sanitize_names=True, exclude_columns=[r"s\.t\.a b"])


def test_an_excluded_column_of_an_unknown_type_is_logged():
    """
    It is left out of the value, unless the key contains it, and is logged (T-49).
    """
    odd = Relation(
        oid=8,
        schema="s",
        table="t",
        columns=(Column("id", 23), Column("odd", UNKNOWN)),
        key=(0,),
    )
    reasons: list[str] = []
    relay = Relay.model_validate({"rows": {"unknown_types": "omit"}})
    types = {UNKNOWN: TypeFacts("never", "s.never")}
    facts = CatalogFacts((), {}, frozenset(), types=types)
    found = ColumnRules(relay, reasons.append).plan(odd, facts)

    assert (["id"], [OMITTED]) == ([field.name for field in found.columns], reasons)


@pytest.mark.parametrize("key_columns", [{}, {"s.t": ["odd", "id"]}])
def test_a_key_column_of_an_unknown_type_keeps_its_text(
    key_columns: dict[str, list[str]],
):
    """
    Otherwise rows that differ only in this column would share a key.
    """
    odd = Relation(
        oid=8,
        schema="s",
        table="t",
        columns=(Column("id", 23), Column("odd", UNKNOWN)),
        key=() if key_columns else (1, 0),
    )
    reasons: list[str] = []
    rows = {"unknown_types": "omit", "key_columns": key_columns}
    types = {UNKNOWN: TypeFacts("never", "s.never")}
    facts = CatalogFacts((), {}, frozenset(), types=types)
    relay = Relay.model_validate({"rows": rows})
    found = ColumnRules(relay, reasons.append).plan(odd, facts)

    assert ([("odd", b'"x"'), ("id", b"1")], ["id", "odd"], []) == (
        [
            (field.name, field.form.json(text))
            for field, text in zip(found.key, (b"x", b"1"), strict=True)
        ],
        [field.name for field in found.columns],
        reasons,
    )
