"""
The sinks' branch of the failure tree.

::

    TowpathError
    ├── UnavailableError
    │   ├── TopicRemadeError           a topic was deleted and created again
    │   ├── PartitionsAddedError       a topic has more partitions than it had
    │   ├── SourceUnavailableError     the source's database does not answer
    │   ├── TargetUnavailableError     a sink's target does not answer
    │   │   └── IndexGoneError         an index was deleted during a batch
    │   ├── BrokerUnavailableError     Kafka does not answer
    │   ├── ExecutorsFailedError       executors could not write a batch
    │   ├── ShapeUnknownError          the relay has not announced a table yet
    │   ├── StateNotWrittenError       a file of the state folder cannot be written
    │   └── SinkNotRunningError        a sink has not reached a state in time
    ├── BusyError
    │   └── TargetBusyError            a sink's target asks for a pause
    │       └── IndexBlockedError      an index takes no writes for now
    ├── DataError
    │   └── BatchRefusedError          a target refuses a whole call
    ├── UsageError
    │   ├── NothingToRebuildError      a sink has no such index, or is no search index
    │   ├── UnknownSinkError           no sink of that name is declared
    │   └── SinkExistsError            a sink of that name exists
    └── HaltError
        ├── EvictingCacheError         the cache may forget guards
        ├── CacheRefusedError          the cache answers a call with an error
        ├── TooManyParkedError         more keys are parked than fit into memory
        ├── EveryChangeRefusedError    a target refuses every change
        ├── StatementRefusedError      the engine refuses a statement
        ├── RecordsGoneError           records were deleted before the sink read them
        ├── EngineDiedError            the engine's process ended by itself
        ├── MetricsPortError           the metrics port cannot be opened
        ├── EngineMissingError         Java or the engine's connectors are missing
        ├── SearchRefusedError         the search index refuses a call
        ├── RouteMistakesError         routes do not fit their tables
        ├── SinkUnfitError             a block does not fit tables, target or engine
        ├── KeylessTableError          a route reads a table without a key
        ├── ForeignIndexError          an index exists that no sink created
        ├── DocumentFieldsError        an aggregate's events give no fields
        ├── KindBrokenError            a package's kind of sink cannot be loaded
        ├── WebhookRefusedError        a receiver wants no more webhooks
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
    """A sink's target does not answer; nothing is lost by trying again."""

    remedy = "Start the sink's target, or correct its url in towpath.toml."


class TargetBusyError(BusyError):
    """A sink's target asks for a pause; nothing is lost by trying again."""

    remedy = "Give the sink's target more room, or wait until it is done."


class IndexGoneError(TargetUnavailableError):
    """An index went away while a batch was written; the next attempt looks again."""

    remedy = "Nothing: the index is found again, or made anew and filled."


class IndexBlockedError(TargetBusyError):
    """An index takes no writes: its disk is full, it is closed, or someone said so."""

    remedy = "Free disk space, open the index, or take its blocks (index.blocks) off."


class BrokerUnavailableError(UnavailableError):
    """Kafka does not answer; nothing is lost by trying again."""

    remedy = (
        "Start Kafka, or correct kafka.bootstrap_servers, and TLS and login in "
        "kafka.client, in towpath.toml."
    )


class ExecutorsFailedError(UnavailableError):
    """Executors could not do their work; nothing is lost by trying again."""

    remedy = "Read the reason: each executor needs Towpath, Kafka and the target."


class TopicRemadeError(UnavailableError):
    """A topic was deleted and made anew while it was read; the next start cures it."""

    remedy = "Nothing: the topic is read from its start, and its rows are asked for."


class PartitionsAddedError(UnavailableError):
    """A topic got more partitions while it was read; the next start cures it."""

    remedy = "Nothing: they are read from their start, and the rows are asked for."


class StateNotWrittenError(UnavailableError):
    """A file of the state folder cannot be written; nothing is lost by trying again."""

    remedy = "Free disk space for state_folder and make it writable; it is tried again."


class BatchRefusedError(DataError):
    """
    A target refuses a whole call without naming the change that it refuses.

    Nothing of the call counts as written. The batch is bisected until the change is
    found; see ``apply.bisect``.
    """

    remedy = "Read the target's answer; the dead letters hold the change with it."


class ShapeUnknownError(UnavailableError):
    """The relay has not yet announced the shape of a table."""

    remedy = "Start the relay and see that the table is listed in source.tables."


class SinkNotRunningError(UnavailableError):
    """A sink does not run, or has not reached a state in time."""

    remedy = "Look at the sink's error: towpath sink list; and at its driver's log."


class NothingToRebuildError(UsageError):
    """A sink has made no such index, or is not a search index."""

    remedy = "Name a search sink that runs, and one of its routes: towpath sink list."


class UnknownSinkError(UsageError):
    """No sink of that name is declared."""

    remedy = "Name a sink that stands in towpath.toml: towpath sink list."


class SinkExistsError(UsageError):
    """A sink of that name is declared, or has left its state behind."""

    remedy = "Choose another name, or drop the old sink: towpath sink drop."


class TooManyParkedError(HaltError):
    """More keys are parked behind dead letters than the sink keeps in mind."""

    remedy = "Cure what the dead letters name, then towpath dead-letters replay."


class EveryChangeRefusedError(HaltError):
    """A target refuses change after change: it is the target, not the changes."""

    remedy = "Read the target's answer; once it takes changes, the sink goes on."


class StatementRefusedError(HaltError):
    """The engine refuses a statement of the warehouse, and will again."""

    remedy = "Read the engine's answer: a table is not as the sink left it."


class EngineMissingError(HaltError):
    """Java or the connectors that the engine needs are not there."""

    remedy = "Set JAVA_HOME to a Java 21 and TOWPATH_SPARK_JARS to the folder of jars."


class EngineDiedError(HaltError):
    """The engine's process ended by itself, and with it every query of the driver."""

    remedy = "Start the driver again; if it recurs, give it more TOWPATH_SPARK_MEMORY."


class RecordsGoneError(HaltError):
    """Records went before a sink had read them; the query's next start cures it."""

    remedy = "Nothing: the sink goes on at what is left, and its rows are asked for."


class MetricsPortError(HaltError):
    """Another process has the metrics port, or the address is not this host's."""

    remedy = "Give [sinks] metrics_ports another number for the driver, or none."


class EvictingCacheError(HaltError):
    """The cache may throw keys away, and with them the guard against older rows."""

    remedy = "Set the cache's maxmemory-policy to noeviction."


class CacheRefusedError(HaltError):
    """The cache answers a call with an error that waiting does not cure."""

    remedy = (
        "Read the cache's answer, and let towpath sink check name the rights that are "
        "missing."
    )


class SearchRefusedError(HaltError):
    """The search index refuses a call, and waiting does not cure it."""

    remedy = "Read the index's answer: a name, a right or a limit is not as it must be."


class RouteMistakesError(HaltError):
    """Routes name columns or keys that their tables do not have so."""

    remedy = "Correct the sink's routes in towpath.toml: towpath sink check."


class SinkUnfitError(HaltError):
    """A sink's block does not fit its tables, its target or the engine that runs it."""

    remedy = "Correct what is named; towpath sink check tells what is left."


class KeylessTableError(HaltError):
    """A route reads a table that has no primary key."""

    remedy = "Give the table a primary key, or take its route out of the sink."


class ForeignIndexError(HaltError):
    """An index of the route's name exists that no sink has made, or several do."""

    remedy = "Give the route another name, or take the index and its alias away."


class DocumentFieldsError(HaltError):
    """The events of an aggregate do not say which fields its document has."""

    remedy = "Name state_types whose schemas agree, or list the route's fields."


class KindBrokenError(HaltError):
    """The package that adds a kind of sink does not give it."""

    remedy = "Read the reason: the package or what it needs is not installed as it was."


class WebhookRefusedError(HaltError):
    """A receiver refuses webhooks altogether: their address, their signature or all."""

    remedy = "Ask the receiver: correct the sink's url or its secrets, or remove it."


class MalformedRelationError(HaltError):
    """The relations topic holds something that is not a table's shape."""

    remedy = "Look at the topic's last record; no one but the relay may write there."
