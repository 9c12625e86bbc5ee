"""
Which rows are read unasked when the relay starts. Pure.

What is durable decides: whether the state topic tells a lineage (*ran*), whether there
is a slot, and what ``towpath.snapshot`` and ``towpath.signal`` keep of the snapshot
``towpath-initial``. A lineage is stored after that snapshot is, and before the first
row is read; so what has begun, in a state that tells no lineage, was of another life.

==================  =====  ====  =====================================================
mode                ran    slot  what is done
==================  =====  ====  =====================================================
never               any    any   nothing
initial,            no     none  the slot is made, with the view of the database in
initial_only,                    which all tables are read before the stream is
when_needed         no     yes   untouched ``towpath-initial``: it goes on;
                                 else all tables are asked for by a signal of that id
                    yes    any   what has not ended goes on
always              any    any   all tables are asked for, unless that of an earlier
                                 start has not ended: then it goes on
==================  =====  ====  =====================================================

``initial_only`` ends once every table has ended, and takes up failed ones when it is
started again. ``when_needed`` also takes the snapshots that close a gap.

A view ends with the connection that holds it. What is left then goes on chunk by chunk
from the last acknowledged key, while the stream is read; a table with a SELECT of its
own goes on as a blocking snapshot, in a view of its own, for its SELECT is no filter.

``delay_s`` holds a first start before anything is made or stored, so that a relay that
is stopped meanwhile has not started; with ``always`` only the asking is put off.
"""

import enum
from typing import Final, NamedTuple

from towpath.settings import FirstStart

SNAPSHOT_ID: Final = "towpath-initial"
# Tables with a SELECT of their own, where the others are asked for by a signal.
SELECT_SUFFIX: Final = "-select"
ALWAYS_PREFIX: Final = "towpath-always-"

# The modes whose first start makes the slot itself.
MAKES_SLOT: Final = frozenset(
    {FirstStart.INITIAL, FirstStart.INITIAL_ONLY, FirstStart.WHEN_NEEDED}
)


class Known(NamedTuple):
    """
    What is durable.

    Attributes:
        has_run: The state topic tells a lineage.
        has_records: Topics of ours hold records.
        has_slot: There is a slot of that name, whosever it is.
        is_untouched: ``towpath-initial`` is stored or asked for, and has not begun.
    """

    has_run: bool
    has_records: bool
    has_slot: bool
    is_untouched: bool


class Beginning(enum.Enum):
    """What is done before the history is followed."""

    GO_ON = enum.auto()
    MAKE_SLOT = enum.auto()
    ASK = enum.auto()


def beginning(mode: FirstStart, known: Known) -> Beginning:
    """
    Decide what a start begins with.

    Records without a lineage are a lost state, which is another's to tell.
    """
    if mode not in MAKES_SLOT or known.has_run or known.has_records:
        return Beginning.GO_ON
    if not known.has_slot:
        return Beginning.MAKE_SLOT
    return Beginning.GO_ON if known.is_untouched else Beginning.ASK
