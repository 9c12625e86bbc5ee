"""Which of a table's unique indexes identifies its rows."""

from typing import Any

import pytest

from towpath.relay.postgres.table_keys import (
    Identity,
    UniqueIndex,
    chosen_key,
    identity_key,
)


def index(name: str, *columns: str | None, **changes: Any) -> UniqueIndex:
    """Describe an index; the defaults make it a valid key."""
    facts: dict[str, Any] = {
        "is_primary": name == "pkey",
        "is_identity": False,
        "is_immediate": True,
        "is_valid": True,
        "is_partial": False,
        "nullable": [],
    }
    return UniqueIndex(1, name, list(columns), **facts | changes)


PKEY, OTHER = index("pkey", "b", "a"), index("other", "c")


@pytest.mark.parametrize(
    ("indexes", "identity", "key"),
    [
        ([PKEY, OTHER], Identity("t", "d", ["a", "b"]), "pkey"),
        ([PKEY, OTHER], Identity("t", "f", None), "pkey"),
        ([OTHER, PKEY], Identity("t", "i", ["a", "b"]), "pkey"),
        ([OTHER], Identity("t", "i", ["c"]), "other"),
        ([index("x", "d", nullable=["d"]), OTHER], Identity("t", "f", None), "other"),
        ([OTHER], Identity("t", "d", None), "other"),
    ],
)
def test_the_streams_key_is_the_tables_key(indexes, identity, key):
    """
    If the stream has no key, the first valid index is used.
    """
    found = identity_key(indexes, [identity])

    assert isinstance(found, UniqueIndex)
    assert key == found.name


@pytest.mark.parametrize(
    ("indexes", "identities", "reason"),
    [
        ([], [Identity("t", "f", None)], "no primary key and no unique index"),
        ([index("x", None)], [Identity("t", "f", None)], "contains an expression"),
        ([index("x", "a", is_valid=False)], [Identity("t", "f", None)], "not valid"),
        ([PKEY, OTHER], [Identity("t", "i", ["c"])], "not its primary key"),
        ([PKEY], [Identity("t", "n", None)], "is nothing"),
        (
            [PKEY],
            [Identity("t", "d", ["a", "b"]), Identity("t1", "i", ["c"])],
            "of t1 is not its primary key",
        ),
    ],
)
def test_a_key_outside_the_stream_cannot_be_used(indexes, identities, reason):
    """
    Changes would match no row of a chunk, so the reason is returned instead.
    """
    found = identity_key(indexes, identities)

    assert isinstance(found, str)
    assert reason in found


def test_a_chosen_key_is_found_by_its_columns_in_any_order():
    """
    The order of its columns is that of the index, and one valid index suffices.
    """
    flawed = index("flawed", "a", "b", is_partial=True)

    assert PKEY == chosen_key([flawed, PKEY], ["a", "b"])
    assert "index flawed: it is partial" in str(chosen_key([flawed], ["a", "b"]))
    assert "no unique index on just these" in str(chosen_key([PKEY], ["a"]))
