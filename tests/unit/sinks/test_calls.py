"""Batches are cut into calls that no target refuses."""

import re

import orjson
import pytest

from support.copying import replace
from towpath.settings import SearchOptions
from towpath.sinks.change import ALL_PRESENT, Change, Origin
from towpath.sinks.targets.cache import schema
from towpath.sinks.targets.cache.pipeline import packed
from towpath.sinks.targets.cache.schema import slot_of
from towpath.sinks.targets.search import write

POSITION = "0000000000000008.0000000000"


def change(key, row=None, position=POSITION, unchanged=ALL_PRESENT):
    """Make a change to a key."""
    origin = Origin("orders", 0, 0)
    return Change("orders", (key,), ("id",), position, row, unchanged, False, origin)


def written(made, *aliases):
    """Encode a change as a document for each of the aliases."""
    return write.documents(made, [write.action_prefix(alias) for alias in aliases])


@pytest.mark.parametrize(
    ("count", "width", "expected"),
    [
        (0, 1, []),
        (1, 1, [1]),
        (201, 1, [100, 100, 1]),
        (3, schema.BYTES_PER_CALL, [1, 1, 1]),
        (4, schema.BYTES_PER_CALL // 3, [2, 2]),
    ],
)
def test_calls_to_the_cache_are_bounded(count: int, width: int, expected: list[int]):
    """Neither too many rows nor too many bytes go into one call."""
    changes = [change(n, {"id": n, "text": "x" * width}) for n in range(count)]
    cut = list(schema.calls("p", changes))

    assert (expected, changes) == (
        [len(call.keys) for call in cut],
        [c for call in cut for c in call.changes],
    )


@pytest.mark.parametrize(
    ("count", "width", "expected"),
    [
        (0, 1, []),
        (21, 1, [10, 10, 1]),
        (3, 4096, [1, 1, 1]),
        (4, 4096 // 3, [2, 2]),
    ],
)
def test_calls_to_the_index_are_bounded(count: int, width: int, expected: list[int]):
    """Neither too many documents nor too many bytes go into one call."""
    changes = [change(n, {"id": n, "text": "x" * width}) for n in range(count)]
    options = SearchOptions(call_documents=10, call_bytes=4096)
    documents = (d for c in changes for d in written(c, "orders"))
    cut = list(write.calls(documents, options))

    assert expected == [len(call) for call in cut]


def test_calls_to_a_cluster_touch_one_slot_each():
    """The keys of each call share a slot, and no key is left out."""
    changes = [change(n, {"id": n}) for n in range(50_000)]
    cut = list(schema.calls("p", changes, by_slot=True))

    assert {1} == {len(set(map(slot_of, call.keys))) for call in cut}
    assert set(range(50_000)) == {c.key[0] for call in cut for c in call.changes}


def test_two_versions_of_the_guard_have_different_names():
    """
    The names of its functions contain a digest of its source.
    """
    guard = schema.library()
    digest = guard.apply.split("_")[1]

    assert (True, 8, list(guard[1:])) == (
        guard.source.startswith(f"#!lua name=towpath_{digest}\n"),
        len(digest),
        re.findall(r"register_function\('(\w+)'", guard.source),
    )


def test_the_cache_gets_text_and_the_names_of_nulls():
    """Integers, booleans and floats are sent as text, because Lua rounds some."""
    row = {"id": 2**63 - 1, "flag": True, "ratio": 0.1, "name": "é", "note": None}
    (call,) = schema.calls("p", [change(7, row, unchanged=frozenset({"blob"}))])

    fields = ["id", "9223372036854775807", "flag", "true", "ratio", "0.1", "name", "é"]

    assert [[POSITION, "p", fields, ["note"]]] == orjson.loads(call.rows)


def test_a_deleted_document_keeps_its_key_and_its_version():
    """
    A delete is a document, because its version must outlive the row.
    """
    (document,) = written(change(7), "orders")
    action, source = document.lines.splitlines()

    assert (
        {
            "index": {
                "_index": "orders",
                "_id": "7",
                "version": 1 << 12 | 1,
                "version_type": "external_gte",
            }
        },
        {"id": 7, "_position": POSITION, "_deleted": True},
    ) == (orjson.loads(action), orjson.loads(source))


def test_a_document_is_written_to_each_alias_of_its_route():
    """
    During a rebuild, both indexes get the same document.
    """
    first, second = written(change(7, {"id": 7}), "orders", "orders-next")
    lines = [one.lines.splitlines() for one in (first, second)]

    assert ["orders", "orders-next"] == [
        orjson.loads(action)["index"]["_index"] for action, _ in lines
    ]
    assert lines[0][1] == lines[1][1]


def test_an_empty_document_is_still_json():
    """An aggregate whose state is an empty object keeps its position."""
    empty = replace(change(7, {}), text=b" {} ")
    (document,) = written(empty, "orders")

    assert {"_position": POSITION} == orjson.loads(document.lines.splitlines()[1])


@pytest.mark.parametrize(
    ("ordinal", "expected"), [(0, False), (4093, False), (4094, True), (9999, True)]
)
def test_high_ordinals_share_a_version(ordinal: int, expected: bool):
    """From ordinal 4,094 on, the version alone does not decide the order."""
    position = f"{8:016x}.{ordinal:010d}"

    assert expected == write.has_shared_version(change(7, position=position))


def test_a_key_of_another_program_that_is_not_utf_8_can_be_swept():
    """A scan returns bytes that are not UTF-8 as surrogates; a call sends the bytes."""
    key = b"p:orders:\xff".decode(errors="surrogateescape")

    assert b"$10\r\np:orders:\xff\r\n" in packed("sweep", [key], [])
    assert 0 <= slot_of(key) < schema.SLOTS
