"""
The relay's errors, and the loop's reaction to each.

::

    TowpathError
    ├── UsageError               HALT: the command cannot be carried out
    │   └── StateRefusedError        the state does not allow what was asked
    ├── UnavailableError          RETRY: connect again, resume from the log
    │   ├── SourceUnavailableError   Postgres is away
    │   ├── SlotBusyError            another process holds the slot
    │   ├── BrokerUnavailableError   Kafka is away
    │   ├── RegistryUnavailableError the schema registry is away
    │   └── DeliveryFailedError      a record was refused: restart from the log
    ├── DataError                 DEAD_LETTER: set one record aside
    │   └── UnroutableError          an outbox row has no place to go
    └── HaltError                 HALT: a person decides
        ├── MalformedMessageError    the stream is not what we know
        ├── SourceRefusedError       Postgres refuses us or a statement of ours
        ├── NotPreparedError         slot, publication or table is missing
        ├── PublicationYoungerError  a publication is not known to the log to be read
        ├── SlotLostError            the log that the slot needed is gone
        ├── SlotHeldError            another relay holds the slot, and stays
        ├── AdminPortError           the admin port cannot be listened on
        ├── BrokerRefusedError       Kafka refuses us or a topic
        │   └── TopicRefusedError       Kafka refuses a topic's name
        ├── RegistryRefusedError     the schema registry refuses us
        ├── SchemaRefusedError       the schema registry refuses a table's schema
        │   └── NameCollisionError      two names are one in Avro or in Kafka
        ├── OutboxUpdatedError       an outbox row was updated, and that is to stop us
        ├── ParkedOverflowError      more aggregates are parked than are kept in mind
        ├── TopicTruncatedError      a topic ends below what it had
        ├── PartitionCountChangedError  keys would stand elsewhere than before
        ├── FirstSnapshotFailedError  a table of the first snapshot failed
        ├── StateLostError           state and slot do not belong together
        ├── HistoryChangedError      the source's history is not the one we followed
        └── KeyChangedError          a captured table's key changed, and that halts

What a check before the start finds: what, why it matters, and what cures it.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple

from towpath.schemas.failure import (
    DataError,
    HaltError,
    UnavailableError,
    UsageError,
)


class StateRefusedError(UsageError):
    """The relay's state does not allow what a command asked of it."""

    remedy = "Look at towpath relay state show, and ask for what the state allows."


class SourceUnavailableError(UnavailableError):
    """Postgres cannot be reached, or ended the connection."""

    remedy = "Check that Postgres runs and that [source] dsn leads to it."


class SlotBusyError(UnavailableError):
    """The slot is in use; a killed relay's walsender lingers for a while."""

    remedy = "Stop the other relay, or end the process that the message names."


class BrokerUnavailableError(UnavailableError):
    """Kafka cannot be reached."""

    remedy = (
        "Check that Kafka runs, that [kafka] bootstrap_servers leads to it, and TLS "
        "and login in [kafka.client]."
    )


class RegistryUnavailableError(UnavailableError):
    """The schema registry cannot be reached, or has no answer now."""

    remedy = "Check that the schema registry runs and that [registry] url leads to it."


class DeliveryFailedError(UnavailableError):
    """Kafka refused a record for good: go back to what the log still has."""

    remedy = "Read the broker's reason; the relay begins again from the log."


class UnroutableError(DataError):
    """An outbox row cannot become an event."""

    remedy = "Find the row in the relay's dead letters, and mend what writes it."


class MalformedMessageError(HaltError):
    """A message of the stream is short, long, unknown or out of turn."""

    remedy = "Report the message; the server speaks a protocol that is not known."


class SourceRefusedError(HaltError):
    """Postgres refuses the login, a right or a statement."""

    remedy = "Grant what the message names, or correct [source] dsn."


class NotPreparedError(HaltError):
    """Something that ``towpath relay init`` makes, or checks, is not right."""

    remedy = "Correct what the message names, then run towpath relay init."


class PublicationYoungerError(HaltError):
    """A publication was made, or made anew, after log that is still to be read."""

    remedy = (
        "Name the publication of before in [source] until the log is read, or drop the "
        'slot and close the gap by snapshots (relay.on_gap = "plan" or "snapshot").'
    )


class SlotLostError(HaltError):
    """Postgres dropped log that the slot still needed."""

    remedy = (
        'Set relay.on_gap to "plan" or "snapshot", or run towpath relay init if there '
        "was never a slot: a new slot is made, and the gap is closed by snapshots."
    )


class SlotHeldError(HaltError):
    """Another process holds the slot and did not let go of it."""

    remedy = "Stop the process that the message names; one slot serves one relay."


class AdminPortError(HaltError):
    """Another process has the admin port, or the address is not this host's."""

    remedy = "Give [relay] admin_port another number, or 0 for any that is free."


class BrokerRefusedError(HaltError):
    """Kafka refuses the login, a right, a topic or a setting."""

    remedy = "Correct what the message names on the broker or in towpath.toml."


class TopicRefusedError(BrokerRefusedError):
    """Kafka refuses a topic's name; an event that asks for it is set aside instead."""

    remedy = (
        "Name the table or the prefix so that its topic differs from every other in "
        "more than dots and underscores."
    )


class RegistryRefusedError(HaltError):
    """The schema registry refuses the login or a right, or is none."""

    remedy = "Correct [registry] url, or grant there what the message names."


class SchemaRefusedError(HaltError):
    """The schema registry refuses the schema of a table's new shape."""

    remedy = (
        "Relax the compatibility of the subject that the message names and start "
        'again, or set relay.rows.on_refused_schema = "park".'
    )


class NameCollisionError(SchemaRefusedError):
    """Two names of the source become one in the names that records may have."""

    remedy = "Rename or exclude one of the two that the message names."


class OutboxUpdatedError(HaltError):
    """A row of the outbox was updated; only inserts are events."""

    remedy = (
        'Mend what updates outbox rows; with on_update = "error" the relay passes over '
        "the update."
    )


class ParkedOverflowError(HaltError):
    """More aggregates are parked behind a dead letter than the relay keeps in mind."""

    remedy = (
        "Raise [relay] max_parked_keys, and mend what writes the rows in the relay's "
        "dead letters."
    )


class TopicTruncatedError(HaltError):
    """A topic was truncated, or deleted and made anew: what it had is not known."""

    remedy = (
        "Bring the topic back, or stop the relay and run towpath relay state repair, "
        "which makes the topic again and asks for snapshots of what it lost."
    )


class PartitionCountChangedError(HaltError):
    """A topic has other partitions than it had: keys would change their order."""

    remedy = (
        "Stop the relay and run towpath relay state repair, which lets it use the "
        "added partitions from the next position on; keys move then."
    )


class FirstSnapshotFailedError(HaltError):
    """A relay that was started for the first snapshot only could not complete it."""

    remedy = (
        "Mend what the message names of each table and start the relay again: only "
        "what is incomplete is read."
    )


class StateLostError(HaltError):
    """The source knows of a past that the relay's state in Kafka does not tell."""

    remedy = (
        "Run towpath relay state repair, which finds the published positions in the "
        "topics; the log names what was found."
    )


class HistoryChangedError(HaltError):
    """The source was restored, promoted or replaced since it was last followed."""

    remedy = (
        'Point [source] dsn at the database of before, or set relay.on_gap to "plan" '
        'or "snapshot" to go on and close the gap by snapshots.'
    )


class KeyChangedError(HaltError):
    """The key of a captured table changed: rows stand under the former key."""

    remedy = (
        'Set relay.on_gap to "plan" or "snapshot": a snapshot of the table with a '
        "sweep removes the rows under the former key."
    )


class Level(enum.StrEnum):
    """An error stands in the way, or loses; a warning may do so one day."""

    ERROR = "error"
    WARNING = "warning"


class Finding(NamedTuple):
    """
    One thing that is not as it should be.

    Attributes:
        level: How bad it is.
        what: The thing, and how it is.
        why: Why that matters, in half a sentence.
        cure: The exact command or change.
    """

    level: Level
    what: str
    why: str
    cure: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}: {self.cure}"


def error_finding(what: str, why: str, cure: str) -> Finding:
    """Find something that stands in the way."""
    return Finding(Level.ERROR, what, why, cure)


def warning_finding(what: str, why: str, cure: str) -> Finding:
    """Find something that works, for now."""
    return Finding(Level.WARNING, what, why, cure)


def blocking_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Pick what stands in the way."""
    return [finding for finding in findings if finding.level is Level.ERROR]
