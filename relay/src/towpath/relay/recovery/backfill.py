"""
The snapshots that close a gap or that a start requests. This module does no I/O.

A gap's notification is in Debezium's format; its data contains the statement that
requests the snapshots of the plan.

A start depends on durable facts: whether the state topic has a lineage (*ran*), whether
there is a slot, and the state of the snapshot ``towpath-initial`` in
``towpath.snapshot`` and ``towpath.signal``. A lineage is stored after that snapshot is
stored, and before its first row is read; so without a lineage, a snapshot that has
begun is from an earlier installation.

==================  =====  ====  =====================================================
mode                ran    slot  action
==================  =====  ====  =====================================================
never               any    any   none
initial,            no     none  create the slot, and read all tables in its exported
initial_only,                    snapshot before the stream
when_needed
(the same)          no     yes   resume an untouched ``towpath-initial``; else request
                                 all tables with a signal of that id
(the same)          yes    any   resume unfinished snapshots
always              any    any   resume the unfinished snapshot of an earlier start;
                                 else request all tables
==================  =====  ====  =====================================================

With ``initial_only`` the relay stops once the scan of every table has ended; the next
start retries failed tables. ``when_needed`` also requests the snapshots that close a
gap.

An exported snapshot ends with its connection. Remaining rows are then read chunk by
chunk from the last acknowledged key, while the stream continues; a table with its own
SELECT is read by a blocking snapshot in a new exported snapshot, because its SELECT is
not a filter.

``delay_s`` pauses a first start after the topics are created, but before a slot is
created, or a snapshot or a lineage is stored: a relay stopped in the meantime has not
*run*. With ``always`` it postpones only the request.
"""

import enum
from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from towpath.relay.encode.record import FIXED_BYTES, Record
from towpath.relay.recovery.lineage import Gap, Lineage
from towpath.relay.snapshot.naming import Registration
from towpath.schemas import topics
from towpath.schemas.position import format_lsn
from towpath.settings import FirstStart


def signal_id(lineage: Lineage, relay: Registration) -> str:
    """Return the id of the signal that fills a lineage's gap. It is deterministic."""
    return f"gap-{lineage.number}{relay.suffix}"


def signal_data(gap: Gap, relay: Registration) -> str:
    """Return the data of a gap's signal, with a sweep for rows deleted in the gap."""
    return sweep_data(gap.plan, relay)


def sweep_data(collections: Sequence[str], relay: Registration) -> str:
    """Return the data of a signal that reads tables with a sweep."""
    document = {
        "data-collections": list(collections),
        "type": "incremental",
        "sweep": True,
        "relay": relay.name,
    }
    return orjson.dumps(document).decode()


def fill_statement(lineage: Lineage, gap: Gap, relay: Registration) -> str:
    """Return the statement that fills a gap; empty if there is nothing to snapshot."""
    if not gap.plan:
        return ""
    return signal_statement(signal_id(lineage, relay), signal_data(gap, relay))


def signal_statement(name: str, data: str) -> str:
    """Return the statement that inserts a signal, as text for the operator."""
    data = data.replace("'", "''")
    # The relay itself passes the data as a parameter.
    return (
        "insert into towpath.signal (id, type, data) values "  # noqa: S608 - see above
        f"('{name}', 'execute-snapshot', '{data}');"
    )


def gap_record(
    prefix: str, lineage: Lineage, gap: Gap, relay: Registration, now_ms: int
) -> Record:
    """Return the notification of a gap."""
    key = signal_id(lineage, relay).encode()
    value = orjson.dumps(
        {
            "id": signal_id(lineage, relay),
            "aggregate_type": "Lineage",
            "type": "GAP",
            "additional_data": {
                "connector_name": prefix,
                "lineage": str(lineage.number),
                "reason": gap.reason,
                "since_lsn": format_lsn(gap.since_lsn),
                "data_collections": ", ".join(gap.plan),
                "fill": fill_statement(lineage, gap, relay),
            },
            "timestamp": now_ms,
        }
    )
    size = len(value) + len(key) + FIXED_BYTES
    topic = topics.notifications_topic(prefix)
    return Record(topic, key, value, [], b"", now_ms, size)


SNAPSHOT_ID: Final = "towpath-initial"
# The suffix of the second signal, for tables with their own SELECT.
SELECT_SUFFIX: Final = "-select"
ALWAYS_PREFIX: Final = "towpath-always-"

# The modes whose first start creates the slot itself.
MAKES_SLOT: Final = frozenset(
    {FirstStart.INITIAL, FirstStart.INITIAL_ONLY, FirstStart.WHEN_NEEDED}
)


class StartFacts(NamedTuple):
    """
    The durable facts on which a start depends.

    Attributes:
        has_run: Whether the state topic has a lineage.
        has_records: Whether the relay's topics hold records.
        has_slot: Whether a slot with this name exists, even if the relay cannot use it.
        is_untouched: Whether ``towpath-initial`` is stored or requested, but has not
            begun.
    """

    has_run: bool
    has_records: bool
    has_slot: bool
    is_untouched: bool


class StartAction(enum.Enum):
    """The action that a start takes before the first record."""

    CONTINUE = enum.auto()
    MAKE_SLOT = enum.auto()
    REQUEST = enum.auto()


def choose_start(mode: FirstStart, known: StartFacts) -> StartAction:
    """
    Return the action of a start.

    Records without a lineage mean a lost state, which ``choose_lineage`` reports.
    """
    if mode not in MAKES_SLOT or known.has_run or known.has_records:
        return StartAction.CONTINUE
    if not known.has_slot:
        return StartAction.MAKE_SLOT
    return StartAction.CONTINUE if known.is_untouched else StartAction.REQUEST
