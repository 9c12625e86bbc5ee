"""
The sinks' branch of the failure tree.

::

    TowpathError
    ├── UnavailableError
    │   ├── TargetUnavailableError     a sink's target does not answer
    │   ├── BrokerUnavailableError     Kafka does not answer
    │   ├── ShapeUnknownError          the relay has not announced a table yet
    │   └── SinkNotRunningError        a sink does not get as far as was waited for
    ├── BusyError
    │   └── TargetBusyError            a sink's target asks for a pause
    ├── UsageError
    │   ├── UnknownSinkError           no sink of that name is declared
    │   └── SinkExistsError            a sink of that name is there already
    └── HaltError
        ├── EvictingCacheError         the cache may forget guards
        ├── CacheRefusedError          the cache answers a call with an error
        ├── StatementRefusedError      the engine refuses a statement
        ├── EngineDiedError            the engine's process ended by itself
        ├── EngineMissingError         Java or the engine's connectors are not there
        ├── SearchRefusedError         the search index refuses a call
        ├── KeylessTableError          a route reads a table without a key
        ├── ForeignIndexError          an index does not fit its table or events
        ├── DocumentFieldsError        an aggregate's events give no fields
        └── MalformedRelationError     the relations topic holds something else
"""

from towpath.schemas.failure import (
    BusyError,
    HaltError,
    UnavailableError,
    UsageError,
)


class TargetUnavailableError(UnavailableError):
    """A sink's target does not answer; nothing is lost by trying again."""

    remedy = "Start the sink's target, or correct its url in towpath.toml."


class TargetBusyError(BusyError):
    """A sink's target asks for a pause; nothing is lost by trying again."""

    remedy = "Give the sink's target more room, or wait until it is done."


class BrokerUnavailableError(UnavailableError):
    """Kafka does not answer; nothing is lost by trying again."""

    remedy = "Start Kafka, or correct kafka.bootstrap_servers in towpath.toml."


class ShapeUnknownError(UnavailableError):
    """The relay has not yet announced the shape of a table."""

    remedy = "Start the relay and see that the table is listed in source.tables."


class SinkNotRunningError(UnavailableError):
    """A sink does not run, or not quickly enough for whoever waits."""

    remedy = "Look at the sink's error: towpath sink list; and at its driver's log."


class UnknownSinkError(UsageError):
    """No sink of that name is declared."""

    remedy = "Name a sink that stands in towpath.toml: towpath sink list."


class SinkExistsError(UsageError):
    """A sink of that name is declared, or has left its state behind."""

    remedy = "Choose another name, or remove the old sink's folder below sinks/."


class StatementRefusedError(HaltError):
    """The engine refuses a statement of the warehouse, and will again."""

    remedy = "Read the engine's answer: a table is not as the sink left it."


class EngineMissingError(HaltError):
    """Java or the connectors that the engine needs are not there."""

    remedy = "Set JAVA_HOME to a Java 21 and TOWPATH_SPARK_JARS to the folder of jars."


class EngineDiedError(HaltError):
    """The engine's process ended by itself, and with it every query of the driver."""

    remedy = "Start the driver again; if it recurs, give it more TOWPATH_SPARK_MEMORY."


class EvictingCacheError(HaltError):
    """The cache may throw keys away, and with them the guard against older rows."""

    remedy = "Set the cache's maxmemory-policy to noeviction."


class CacheRefusedError(HaltError):
    """The cache answers a call with an error that waiting does not cure."""

    remedy = "Read the cache's answer: its user needs FUNCTION, FCALL and INFO."


class SearchRefusedError(HaltError):
    """The search index refuses a call, and waiting does not cure it."""

    remedy = "Read the index's answer: a name, a right or a limit is not as it must be."


class KeylessTableError(HaltError):
    """A route reads a table that has no primary key."""

    remedy = "Give the table a primary key, or take its route out of the sink."


class ForeignIndexError(HaltError):
    """An index exists whose fields do not fit the table's columns or the events."""

    remedy = "Rebuild the index: drop it, then fill the sink again by a snapshot."


class DocumentFieldsError(HaltError):
    """The events of an aggregate do not say which fields its document has."""

    remedy = "Name state_types whose schemas agree, or list the route's fields."


class MalformedRelationError(HaltError):
    """The relations topic holds something that is not a table's shape."""

    remedy = "Look at the topic's last record; no one but the relay may write there."
