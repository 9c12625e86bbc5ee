"""
The relay's errors, and the loop's reaction to each.

::

    TowpathError
    ├── UsageError               HALT: the command cannot be carried out
    │   └── StateRefusedError        the state does not allow the command
    ├── UnavailableError          RETRY: reconnect, resume from the log
    │   ├── SourceUnavailableError   Postgres cannot be reached
    │   │   └── SourceBusyError          Postgres aborted a statement
    │   ├── SlotBusyError            another process holds the slot
    │   ├── BrokerUnavailableError   Kafka cannot be reached
    │   ├── DeliveryFailedError      a record or commit failed: restart from the log
    │   └── OutboxUnconfirmedError   events of the outbox are not published yet
    ├── DataError                 DEAD_LETTER: one record
    │   └── UnroutableError          an outbox row cannot become an event
    └── HaltError                 HALT: the operator decides
        ├── MalformedMessageError    a message in the stream cannot be parsed
        ├── SourceRefusedError       Postgres refuses the login or a statement
        ├── NotPreparedError         slot, publication or table is missing
        ├── PublicationYoungerError  a publication is newer than the log to be read
        ├── SlotLostError            Postgres removed WAL that the slot needed
        ├── SlotHeldError            another process did not release the slot in time
        ├── AdminPortError           the admin port cannot be opened
        ├── BrokerRefusedError       Kafka refuses the login or a topic
        │   └── TopicRefusedError       Kafka refuses a topic's name
        ├── SchemaRefusedError       the schema registry refuses a table's schema
        │   └── NameCollisionError      two tables share a name in Avro or Kafka
        ├── OutboxUpdatedError       an outbox row was updated
        ├── ParkedOverflowError      more aggregates are parked than allowed
        ├── TopicTruncatedError      a topic's end offset is below its mark
        ├── PartitionCountChangedError  keys would change their partition
        ├── FirstSnapshotFailedError  a table of the first snapshot failed
        ├── StateLostError           the state is unreadable, or lacks the history
        ├── HistoryChangedError      the source's history has changed
        └── KeyChangedError          a captured table's key changed
"""

from towpath.schemas.failure import (
    DataError,
    HaltError,
    SchemaRefusedError,
    UnavailableError,
    UsageError,
)


class StateRefusedError(UsageError):
    """The relay's state does not allow a command."""

    remedy = "Run towpath relay state show, and use a command that the state allows."


class SourceUnavailableError(UnavailableError):
    """Postgres cannot be reached, or ended the connection."""

    remedy = "Check that Postgres is running and that [source] dsn points to it."


class SourceBusyError(SourceUnavailableError):
    """Postgres aborted a statement: a conflict, a time limit, or an I/O error."""

    remedy = "If the error recurs, check the server's log for what the message names."


class SlotBusyError(UnavailableError):
    """The slot is in use; the walsender of a killed relay keeps it for a while."""

    remedy = "Stop the other relay, or end the process that the message names."


class BrokerUnavailableError(UnavailableError):
    """Kafka cannot be reached."""

    remedy = (
        "Check that Kafka is running, that [kafka] bootstrap_servers points to it, and "
        "that TLS and login in [kafka.client] are correct."
    )


class DeliveryFailedError(UnavailableError):
    """Kafka refused a record or a commit: the relay restarts from the log."""

    remedy = "Read the broker's reason; the relay restarts from the log."


class OutboxUnconfirmedError(UnavailableError):
    """A reader of the log did not confirm old events of the outbox in time."""

    remedy = (
        "Start the relay, or the reader that the message names, and run towpath outbox "
        "clean again; use pg_drop_replication_slot to drop a slot that nobody reads "
        "anymore."
    )


class UnroutableError(DataError):
    """An outbox row cannot become an event."""

    remedy = (
        "Find the row in the relay's dead letters, and fix the code that writes it."
    )


class MalformedMessageError(HaltError):
    """A message in the stream, or a value in it, is malformed or out of order."""

    remedy = "Correct what the message names; if no cause is named, report the message."


class SourceRefusedError(HaltError):
    """Postgres refuses the login or a statement, or denies a privilege."""

    remedy = "Grant what the message names, or correct [source] dsn."


class NotPreparedError(HaltError):
    """An object that ``towpath relay init`` creates or checks is missing or wrong."""

    remedy = "Correct what the message names, then run towpath relay init."


class PublicationYoungerError(HaltError):
    """A publication is newer than the log that the relay still has to read."""

    remedy = (
        "Name the former publication in [source] until the log is read, or drop the "
        'slot and close the gap with snapshots (relay.on_gap = "plan" or "snapshot").'
    )


class SlotLostError(HaltError):
    """Postgres removed WAL that the slot still needed."""

    remedy = (
        'Set relay.on_gap to "plan" or "snapshot", or run towpath relay init if there '
        "was never a slot: a new slot is created, and snapshots close the gap."
    )


class SlotHeldError(HaltError):
    """Another process holds the slot and did not release it in time."""

    remedy = "Stop the process that the message names; one slot serves one relay."


class AdminPortError(HaltError):
    """The admin port is in use, or the address does not belong to this host."""

    remedy = (
        "Set [relay] admin_port to another port, or to 0 for any free port; admin_host "
        "must be an address or a name of this host."
    )


class BrokerRefusedError(HaltError):
    """Kafka refuses the login, a topic or a setting, or denies access."""

    remedy = "Correct what the message names on the broker or in towpath.toml."


class TopicRefusedError(BrokerRefusedError):
    """Kafka refuses a topic's name; an event for it becomes a dead letter."""

    remedy = (
        "Name the table or the prefix so that the table's topic differs from every "
        "other topic in more than dots and underscores."
    )


class NameCollisionError(SchemaRefusedError):
    """Two names in the source become the same in Kafka or in Avro."""

    remedy = "Rename or exclude one of the two names in the message."


class OutboxUpdatedError(HaltError):
    """A row of the outbox was updated; only inserts are events."""

    remedy = (
        'Fix the code that updates outbox rows; with on_update = "error" the relay '
        "skips the update."
    )


class ParkedOverflowError(HaltError):
    """More aggregates are parked behind dead letters than the settings allow."""

    remedy = (
        "Raise [relay] max_parked_keys, and fix the code that writes the rows in the "
        "relay's dead letters."
    )


class TopicTruncatedError(HaltError):
    """A topic was truncated, or deleted and recreated: its records are lost."""

    remedy = (
        "Restore the topic, or stop the relay and run towpath relay state repair, "
        "which recreates a deleted topic and requests snapshots of the lost records."
    )


class PartitionCountChangedError(HaltError):
    """A topic's partition count changed: keys would lose their order."""

    remedy = (
        "Stop the relay and run towpath relay state repair, which lets the relay use "
        "the added partitions from the next position on; keys then change partitions."
    )


class FirstSnapshotFailedError(HaltError):
    """A relay started only for the first snapshot could not complete it."""

    remedy = (
        "Fix what the message names for each table and start the relay again: it reads "
        "only the incomplete tables."
    )


class StateLostError(HaltError):
    """The relay's state in Kafka is unreadable, or lacks the source's history."""

    remedy = (
        "Run towpath relay state repair, which finds the published positions in the "
        "topics and prints the rebuilt state."
    )


class HistoryChangedError(HaltError):
    """The source has been restored, promoted or replaced since the last session."""

    remedy = (
        'Point [source] dsn at the former database, or set relay.on_gap to "plan" '
        'or "snapshot" to continue and close the gap with snapshots.'
    )


class KeyChangedError(HaltError):
    """The key of a captured table changed: sinks keep rows under the former key."""

    remedy = (
        'Set relay.on_gap to "plan" or "snapshot": a snapshot of the table with a '
        "sweep removes the rows under the former key."
    )
