"""Whether server, slot and state belong together."""

import pytest

from towpath.relay.errors import (
    ForeignSourceError,
    NotPreparedError,
    SlotLostError,
    StateLostError,
)
from towpath.relay.kafka.lineage import Lineage, agree

STORED = Lineage("123", 1, 800, "towpath")
FOUND = Lineage("123", 1, 0, "towpath")


def test_the_first_start_begins_a_lineage():
    """
    Without state, the history at hand is followed from offset zero.
    """
    assert FOUND == agree(None, FOUND, has_slot=True, has_log=True)


def test_a_known_lineage_goes_on():
    """
    The stored lineage, with its offset, is followed.
    """
    assert STORED == agree(STORED, FOUND, has_slot=True, has_log=True)


@pytest.mark.parametrize(
    ("stored", "found", "has_slot", "has_log", "error"),
    [
        (None, FOUND, False, False, NotPreparedError),
        (STORED, FOUND, False, False, StateLostError),
        (STORED, FOUND, True, False, SlotLostError),
        (None, FOUND, True, False, SlotLostError),
        (STORED, Lineage("9", 1, 0, "towpath"), True, True, ForeignSourceError),
        (STORED, Lineage("9", 1, 0, "towpath"), False, False, ForeignSourceError),
    ],
)
def test_what_does_not_belong_together_is_a_named_error(
    stored: Lineage | None,
    found: Lineage,
    error: type[Exception],
    *,
    has_slot: bool,
    has_log: bool,
):
    """
    Going on beside a gap would lose changes: each case halts by its own name.
    """
    with pytest.raises(error):
        agree(stored, found, has_slot=has_slot, has_log=has_log)
