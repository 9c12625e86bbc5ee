"""
A gap, told to those who read Kafka, and what fills it.

The notification has Debezium's shape; its data carries the very statement that asks
for the snapshots of the plan.

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
    """Return the id of the signal that fills a lineage's gap: always the same."""
    return f"gap-{lineage.number}{relay.suffix}"


def signal_data(gap: Gap, relay: Registration) -> str:
    """Return the data of that signal: with a sweep, for rows deleted in the gap."""
    return sweep_data(gap.plan, relay)


def sweep_data(collections: Sequence[str], relay: Registration) -> str:
    """Return the data of a signal that reads tables with a sweep."""
    wishes = {
        "data-collections": list(collections),
        "type": "incremental",
        "sweep": True,
        "relay": relay.name,
    }
    return orjson.dumps(wishes).decode()


def fill_statement(lineage: Lineage, gap: Gap, relay: Registration) -> str:
    """Return the statement that fills a gap; empty if there is nothing to snapshot."""
    if not gap.plan:
        return ""
    return signal_statement(signal_id(lineage, relay), signal_data(gap, relay))


def signal_statement(name: str, data: str) -> str:
    """Return the statement that leaves a signal; it is printed for people."""
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
# Tables with a SELECT of their own, where the others are asked for by a signal.
SELECT_SUFFIX: Final = "-select"
ALWAYS_PREFIX: Final = "towpath-always-"

# The modes whose first start makes the slot itself.
MAKES_SLOT: Final = frozenset(
    {FirstStart.INITIAL, FirstStart.INITIAL_ONLY, FirstStart.WHEN_NEEDED}
)


class StartFacts(NamedTuple):
    """
    The durable facts that decide.

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


class StartAction(enum.Enum):
    """The actions before the first record."""

    GO_ON = enum.auto()
    MAKE_SLOT = enum.auto()
    ASK = enum.auto()


def choose_start(mode: FirstStart, known: StartFacts) -> StartAction:
    """
    Decide what a start begins with.

    Records without a lineage are a lost state, which is another's to tell.
    """
    if mode not in MAKES_SLOT or known.has_run or known.has_records:
        return StartAction.GO_ON
    if not known.has_slot:
        return StartAction.MAKE_SLOT
    return StartAction.GO_ON if known.is_untouched else StartAction.ASK
