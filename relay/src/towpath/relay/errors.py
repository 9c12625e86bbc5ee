"""
What can go wrong in the relay, and what its loop does about it.

::

    TowpathError
    ├── UnavailableError          RETRY: connect again, resume from the log
    │   ├── SourceUnavailableError   Postgres is away
    │   ├── SlotBusyError            another process holds the slot
    │   ├── BrokerUnavailableError   Kafka is away
    │   └── DeliveryFailedError      a record was refused: restart from the log
    ├── DataError                 DEAD_LETTER: set one record aside
    │   └── UnroutableError          an outbox row has no place to go
    └── HaltError                 HALT: a person decides
        ├── MalformedMessageError    the stream is not what we know
        ├── SourceRefusedError       Postgres refuses us or a statement of ours
        ├── NotPreparedError         slot, publication or table is missing
        ├── SlotLostError            the log that the slot needed is gone
        ├── SlotHeldError            another relay holds the slot, and stays
        ├── BrokerRefusedError       Kafka refuses us or a topic
        ├── StateLostError           state and slot do not belong together
        └── ForeignSourceError       another database than the one we followed
"""

from towpath.schemas.failure import DataError, HaltError, UnavailableError


class SourceUnavailableError(UnavailableError):
    """Postgres cannot be reached, or ended the connection."""

    remedy = "Check that Postgres runs and that [source] dsn leads to it."


class SlotBusyError(UnavailableError):
    """The slot is in use; a killed relay's walsender lingers for a while."""

    remedy = "Stop the other relay, or end the process that the message names."


class BrokerUnavailableError(UnavailableError):
    """Kafka cannot be reached."""

    remedy = "Check that Kafka runs and that [kafka] bootstrap_servers leads to it."


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


class SlotLostError(HaltError):
    """Postgres dropped log that the slot still needed."""

    remedy = "Drop the slot, run towpath relay init, and snapshot every table again."


class SlotHeldError(HaltError):
    """Another process holds the slot and did not let go of it."""

    remedy = "Stop the process that the message names; one slot serves one relay."


class BrokerRefusedError(HaltError):
    """Kafka refuses the login, a right, a topic or a setting."""

    remedy = "Correct what the message names on the broker or in towpath.toml."


class StateLostError(HaltError):
    """The relay's state in Kafka names a slot that is not there."""

    remedy = (
        "Changes since the slot vanished are not in Kafka: delete the state topic, "
        "run towpath relay init, and snapshot every table again."
    )


class ForeignSourceError(HaltError):
    """The database is not the one whose history this relay followed."""

    remedy = (
        "Point [source] dsn at the database of before, or choose another prefix "
        "for the new one."
    )
