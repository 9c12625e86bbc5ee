"""
The sinks' branch of the failure tree.

::

    TowpathError
    ├── UnavailableError
    │   ├── TopicRemadeError           a topic was deleted and recreated
    │   ├── PartitionsAddedError       a topic has more partitions than it had
    │   ├── SourceUnavailableError     the source's database does not answer
    │   ├── TargetUnavailableError     a sink's target does not answer
    │   │   └── IndexGoneError         an index was deleted during a batch
    │   ├── BrokerUnavailableError     Kafka does not answer
    │   ├── SinkRunsElsewhereError     another driver may still run the sink
    │   ├── SinkTakenOverError         another driver has taken the sink over
    │   ├── ExecutorsFailedError       executors could not write a batch
    │   ├── TaskExpiredError           a task's time to write is over
    │   ├── ShapeUnknownError          the relay has not announced a table yet
    │   ├── StateNotWrittenError       a file of the state folder cannot be written
    │   ├── SinkNotRunningError        a sink has not reached a state in time
    │   ├── JarsError                  a Java archive could not be fetched
    │   └── BusyError
    │       ├── TargetBusyError        a sink's target asks for a pause
    │       │   └── IndexBlockedError  an index accepts no writes for now
    │       └── TasksAbandonedError    abandoned tasks may still write
    ├── DataError
    │   └── BatchRefusedError          a target refuses a whole call
    ├── UsageError
    │   ├── PrerequisiteError          the machine lacks a program or package
    │   ├── NothingToRebuildError      a sink has no such index, or is not a search sink
    │   ├── UnknownSinkError           no sink of that name is declared
    │   └── SinkExistsError            a sink of that name exists
    └── HaltError
        ├── EvictingCacheError         the cache may forget guards
        ├── CacheRefusedError          the cache answers a call with an error
        ├── TooManyParkedError         more keys are parked than fit into memory
        ├── EveryChangeRefusedError    a target refuses every change
        ├── StatementRefusedError      the engine refuses a statement
        ├── RecordsGoneError           records were deleted before the sink read them
        ├── EngineDiedError            the engine's process ended unexpectedly
        ├── MetricsPortError           the metrics port cannot be opened
        ├── EngineMissingError         Java or the engine's connectors are missing
        ├── SearchRefusedError         the search index refuses a call
        ├── RouteMistakesError         routes do not fit their tables
        ├── SinkUnfitError             a block does not fit tables, target or engine
        ├── KeylessTableError          a route reads a table without a key
        ├── ForeignIndexError          an index exists that no sink created
        ├── DocumentFieldsError        an aggregate's events define no fields
        ├── KindBrokenError            a package's kind of sink cannot be loaded
        ├── TransformBrokenError       a package's transform cannot be imported
        ├── WebhookRefusedError        a receiver refuses all webhooks
        ├── UnreadableProgressError    a driver of another version runs the sink
        └── MalformedRelationError     the relations topic has an unreadable record
"""

from towpath.schemas.failure import (
    BusyError,
    DataError,
    HaltError,
    UnavailableError,
    UsageError,
)


class SourceUnavailableError(UnavailableError):
    """The source's database does not answer, or cannot be read."""

    remedy = "Start the database, or correct source.dsn in towpath.toml."


class TargetUnavailableError(UnavailableError):
    """A sink's target does not answer; a retry loses nothing."""

    remedy = "Start the sink's target, or correct its url in towpath.toml."


class TargetBusyError(BusyError):
    """A sink's target asks for a pause; a retry loses nothing."""

    remedy = "Give the sink's target more resources, or wait until its load drops."


class IndexGoneError(TargetUnavailableError):
    """An index was deleted during a batch; the next attempt looks it up again."""

    remedy = "No action needed: the index is found again, or recreated and filled."


class IndexBlockedError(TargetBusyError):
    """An index accepts no writes: its disk is full, or it is closed or blocked."""

    remedy = "Free disk space, open the index, or remove its blocks (index.blocks)."


class BrokerUnavailableError(UnavailableError):
    """Kafka does not answer; a retry loses nothing."""

    remedy = (
        "Start Kafka, or correct towpath.toml: kafka.bootstrap_servers, and the TLS "
        "and login settings in kafka.client."
    )


class SinkRunsElsewhereError(UnavailableError):
    """A driver on another machine may still run the sink; it is checked again."""

    remedy = (
        "Wait half a minute: the sink starts here once the other driver has stored no "
        "state for that long. If both are to run, give their sinks different names."
    )


class SinkTakenOverError(UnavailableError):
    """A driver on another machine has taken the sink over; nothing more is written."""

    remedy = "Stop one of the two drivers: only one may run a sink."


class ExecutorsFailedError(UnavailableError):
    """Executors could not write a batch; a retry loses nothing."""

    remedy = (
        "Read the reason: executors must have Towpath, and reach Kafka and the target."
    )


class TaskExpiredError(UnavailableError):
    """A task may no longer write; its batch is written again."""

    remedy = (
        "Lower max_batch_records, or give the target more resources: a task has two "
        "minutes for its slice of a batch."
    )


class TasksAbandonedError(BusyError):
    """Abandoned tasks may still write: a floor waits until their deadline passes."""

    remedy = "No action needed: the batch is written again in a few minutes."


class TopicRemadeError(UnavailableError):
    """A topic was recreated while it was being read; the next start recovers."""

    remedy = "No action needed: the topic is read again, and its rows are requested."


class PartitionsAddedError(UnavailableError):
    """A topic got more partitions while being read; the next start recovers."""

    remedy = (
        "No action needed: the new partitions are read from their start, and the "
        "topic's rows are requested."
    )


class StateNotWrittenError(UnavailableError):
    """A file of the state folder cannot be written; a retry loses nothing."""

    remedy = (
        "Free disk space for state_folder and make it writable; writes are retried."
    )


class BatchRefusedError(DataError):
    """
    A target refuses a whole call without naming the change that it refuses.

    No change of the call counts as written. The batch is bisected until the change is
    found; see ``apply.bisect``.
    """

    remedy = (
        "Read the target's response, which is the reason in the change's dead letter."
    )


class ShapeUnknownError(UnavailableError):
    """The relay has not yet announced the shape of a table."""

    remedy = "Start the relay, and check that source.tables lists the table."


class SinkNotRunningError(UnavailableError):
    """A sink is not running, or has not reached a state in time."""

    remedy = "Read the sink's error (towpath sink list) and its driver's log."


class PrerequisiteError(UsageError):
    """The machine lacks a program or package that cannot be fetched."""

    remedy = (
        "Install the program or package that the message names, then run the command "
        "again."
    )


class JarsError(UnavailableError):
    """A Java archive is missing and could not be fetched."""

    remedy = (
        "Read the reason, check the network, and run the command again; towpath sink "
        "fetch-jars fetches a driver's archives, and keeps complete ones."
    )


class NothingToRebuildError(UsageError):
    """A sink has created no such index, or is not a search sink."""

    remedy = "Name a running search sink and one of its routes: run towpath sink list."


class UnknownSinkError(UsageError):
    """No sink of that name is declared."""

    remedy = "Name a sink that towpath.toml declares: towpath sink list."


class SinkExistsError(UsageError):
    """A sink of that name is declared, or has left its state behind."""

    remedy = "Choose another name, or drop the old sink: towpath sink drop."


class TooManyParkedError(HaltError):
    """More keys are parked behind dead letters than the sink keeps in memory."""

    remedy = (
        "Fix the causes that the dead letters name, then run towpath dead-letters "
        "replay."
    )


class EveryChangeRefusedError(HaltError):
    """A target refuses many consecutive changes: the cause is the target itself."""

    remedy = "Read the target's response; once it accepts changes, the sink continues."


class StatementRefusedError(HaltError):
    """The engine refuses a statement of the warehouse, and a retry does not help."""

    remedy = (
        "Read the engine's message: a table may have been altered outside the sink."
    )


class EngineMissingError(HaltError):
    """Java or the connectors that the engine needs are missing."""

    remedy = (
        "Set JAVA_HOME to a Java 21 runtime and TOWPATH_SPARK_JARS to the jars' folder."
    )


class EngineDiedError(HaltError):
    """The engine's process ended unexpectedly, and so did every query of its driver."""

    remedy = "Start the driver again; if it recurs, raise TOWPATH_SPARK_MEMORY."


class RecordsGoneError(HaltError):
    """Records were deleted before a sink read them; the query's next start recovers."""

    remedy = "No action needed: the sink continues, and the missing rows are requested."


class MetricsPortError(HaltError):
    """Another process uses the metrics port, or the address is not this host's."""

    remedy = (
        "Set another port for the driver in [sinks] metrics_ports, or none; set "
        "metrics_host to an address of this host."
    )


class EvictingCacheError(HaltError):
    """The cache may evict keys, and with them the guard against older rows."""

    remedy = "Set the cache's maxmemory-policy to noeviction."


class CacheRefusedError(HaltError):
    """The cache answers a call with an error, and a retry does not help."""

    remedy = "Read the cache's response; towpath sink check lists the missing rights."


class SearchRefusedError(HaltError):
    """The search index refuses a call, and a retry does not help."""

    remedy = (
        "Read the index's response, and correct the name, right or limit that it names."
    )


class RouteMistakesError(HaltError):
    """Routes do not fit their tables; the message lists every mistake."""

    remedy = "Correct the sink's routes in towpath.toml: towpath sink check."


class SinkUnfitError(HaltError):
    """A sink's block does not fit its tables, its target or the engine that runs it."""

    remedy = (
        "Correct the reported mistakes; towpath sink check lists those that remain."
    )


class KeylessTableError(HaltError):
    """A route reads a table without a key."""

    remedy = (
        "Give the table a primary key, name its key in relay.rows.key_columns, or "
        "remove its route from the sink."
    )


class ForeignIndexError(HaltError):
    """A route's alias names an index that no sink created, or several indexes."""

    remedy = "Give the route another name, or delete the index and its alias."


class DocumentFieldsError(HaltError):
    """The events of an aggregate do not define the fields of its document."""

    remedy = "Name state_types whose schemas agree, or list the route's fields."


class KindBrokenError(HaltError):
    """The package that adds a kind of sink does not provide it."""

    remedy = "Read the reason: the package or a dependency is missing or has changed."


class TransformBrokenError(HaltError):
    """A Python transform is not installed, or cannot be imported."""

    remedy = "Install the transform's package, or mend it; the reason says which."


class WebhookRefusedError(HaltError):
    """A receiver refuses all webhooks because of address, signature or a rule."""

    remedy = (
        "Ask the receiver's operator for the reason; correct the sink's url or "
        "secrets, or remove the sink."
    )


class UnreadableProgressError(HaltError):
    """A driver publishes the progress of a sink in another version's format."""

    remedy = "Use the version of Towpath that the sink's driver has, or upgrade both."


class MalformedRelationError(HaltError):
    """The relations topic has a record that is not a table's shape."""

    remedy = "Inspect the topic's records; only the relay may write to the topic."
