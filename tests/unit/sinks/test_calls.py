"""Batches are cut into calls that no target refuses."""

import orjson
import pytest

from towpath.sinks.cache import script
from towpath.sinks.change import ALL_PRESENT, Change, Origin
from towpath.sinks.search import request

POSITION = "0000000000000008.0000000000"


def change(key, row=None, position=POSITION, unchanged=ALL_PRESENT):
    """Make a change of a key."""
    origin = Origin("orders", 0, 0)
    return Change("orders", (key,), ("id",), position, row, unchanged, False, origin)


@pytest.mark.parametrize(
    ("count", "width", "expected"),
    [
        (0, 1, []),
        (1, 1, [1]),
        (1001, 1, [500, 500, 1]),
        (3, script.BYTES_PER_CALL, [1, 1, 1]),
        (4, script.BYTES_PER_CALL // 3, [2, 2]),
    ],
)
def test_calls_of_the_cache_are_bounded(count: int, width: int, expected: list[int]):
    """Neither too many rows nor too many bytes go into one call."""
    changes = [change(n, {"id": n, "text": "x" * width}) for n in range(count)]
    cut = list(script.calls("p", changes))

    assert (expected, changes) == (
        [len(call.keys) for call in cut],
        [c for call in cut for c in call.changes],
    )


@pytest.mark.parametrize(
    ("count", "width", "expected"),
    [
        (0, 1, []),
        (2001, 1, [1000, 1000, 1]),
        (3, request.BYTES_PER_CALL, [1, 1, 1]),
        (4, request.BYTES_PER_CALL // 3, [2, 2]),
    ],
)
def test_calls_of_the_index_are_bounded(count: int, width: int, expected: list[int]):
    """Neither too many documents nor too many bytes go into one call."""
    changes = [change(n, {"id": n, "text": "x" * width}) for n in range(count)]
    cut = list(request.calls(request.document(c) for c in changes))

    assert expected == [len(call.documents) for call in cut]


def test_the_cache_gets_text_and_the_names_of_nulls():
    """Integers, booleans and floats travel as text, so that Lua rounds none of them."""
    row = {"id": 2**63 - 1, "flag": True, "ratio": 0.1, "name": "é", "note": None}
    (call,) = script.calls("p", [change(7, row, unchanged=frozenset({"blob"}))])

    fields = ["id", "9223372036854775807", "flag", "true", "ratio", "0.1", "name", "é"]

    assert [[POSITION, "p", fields, ["note"]]] == orjson.loads(call.rows)


def test_a_deleted_document_keeps_its_key_and_its_version():
    """A delete is a document: its version must outlive it."""
    action, source = request.document(change(7)).lines.splitlines()

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


@pytest.mark.parametrize(
    ("ordinal", "expected"), [(0, False), (4093, False), (4094, True), (9999, True)]
)
def test_high_ordinals_share_a_version(ordinal: int, expected: bool):
    """From ordinal 4,094 on the version alone does not decide."""
    position = f"{8:016x}.{ordinal:010d}"

    assert expected == request.has_shared_version(change(7, position=position))
