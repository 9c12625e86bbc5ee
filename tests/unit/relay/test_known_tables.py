"""Events of captured names, determined from stored rows and the catalog alone."""

import pytest

from towpath.relay.postgres.known_tables import (
    KnownTable,
    TableEventKind,
    captured_name_changes,
)
from towpath.relay.postgres.source_facts import ListedTable

LINEAGE = 3


def known(oid: int, *, lineage: int = LINEAGE, is_gone: bool = False) -> KnownTable:
    """Make the stored row of ``s.a``."""
    return KnownTable("s", "a", oid, lineage, is_gone)


@pytest.mark.parametrize(
    ("stored", "listed", "expected"),
    [
        pytest.param(known(1), [("s.a", 1, True)], None, id="same table"),
        pytest.param(known(1), [], TableEventKind.DROPPED, id="dropped"),
        pytest.param(
            known(1), [("s.b", 1, True)], TableEventKind.RENAMED, id="renamed"
        ),
        pytest.param(
            known(1), [("s.a", 2, False)], TableEventKind.RECREATED, id="recreated"
        ),
        pytest.param(
            known(1),
            [("s.a", 2, True), ("s.b", 1, True)],
            TableEventKind.RECREATED,
            id="swapped",
        ),
        pytest.param(known(1, is_gone=True), [], None, id="already reported"),
        pytest.param(
            known(1, is_gone=True),
            [("s.a", 1, True)],
            TableEventKind.RECREATED,
            id="renamed back",
        ),
        pytest.param(
            known(1, is_gone=True), [("s.a", 2, False)], None, id="not captured yet"
        ),
        pytest.param(
            known(1, lineage=2), [("s.a", 2, True)], None, id="a gap's plan reads it"
        ),
        pytest.param(
            known(1, lineage=2), [], TableEventKind.DROPPED, id="dropped in a gap"
        ),
    ],
)
def test_a_captured_name_is_compared_with_its_stored_table(stored, listed, expected):
    """
    Each case in which a name loses its table has its own event.
    """
    found = captured_name_changes(
        [stored], [ListedTable(*each) for each in listed], LINEAGE
    )

    assert ([] if expected is None else [expected]) == [each.event for each in found]
