"""
The captured tables, and the check that each has its own topic.

The mapping from table names to topic names loses information. Kafka allows only
letters, digits, dots, dashes and underscores, and does not distinguish names that
differ only in dots and underscores. So two tables can share a topic: the rows of one
would then overwrite and delete those of the other. A table's topic can also be one of
the relay's own.

Tables in the relations topic count, too: a topic belongs to the table whose rows it
holds, even if that table is no longer captured.

Tables can be added while the relay is running. Tables named in the configuration are
captured from the start; tables that match its regular expressions are captured once
they are in the publication. The slot monitor replaces all names in one step, from its
own thread.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from towpath.relay.encode.codecs.connect_schema import sanitized_path
from towpath.relay.encode.outbox_columns import topics_of_relay
from towpath.relay.errors import NameCollisionError
from towpath.schemas import topics
from towpath.schemas.findings import CheckFinding, error_finding
from towpath.schemas.table_name import TableName
from towpath.settings import RecordFormat, Settings

_REMEDY_FOR_BOTH: Final = (
    "rename one of them in the source, or leave one out of [source] tables (or name it "
    "in exclude_tables)"
)
_REMEDY_FOR_ONE: Final = (
    "rename the table in the source, or leave it out of [source] tables (or name it in "
    "exclude_tables)"
)


def topic_findings(
    settings: Settings, tables: Iterable[str], announced: Collection[TableName] = ()
) -> dict[str, CheckFinding]:
    """
    Find the tables that cannot have their own topic.

    Args:
        settings: The configuration.
        tables: Captured tables, and those to be captured.
        announced: The tables whose rows may be in topics.

    Returns:
        The finding for each table that has one.
    """
    names = [TableName.parse(text) for text in dict.fromkeys(tables)]
    return dict(
        chain(
            _shared_findings(settings, names),
            _former_findings(settings, names, announced),
            _reserved_findings(settings, names),
        )
    )


def check_topics(
    settings: Settings, tables: Iterable[str], announced: Collection[TableName]
) -> None:
    """
    Make sure that each table has its own topic.

    Raises:
        NameCollisionError: Some tables do not; the message names all of them.
    """
    found = dict.fromkeys(topic_findings(settings, tables, announced).values())
    if found:
        raise NameCollisionError("\n".join(map(str, found)))


def owners_of_topics(
    prefix: str, tables: Iterable[str], announced: Iterable[TableName]
) -> dict[str, TableName]:
    """Return the table of each topic: the captured one, or else the announced one."""
    names = (*announced, *map(TableName.parse, tables))
    return {topics.table_topic(prefix, name): name for name in names}


def _shared_findings(
    settings: Settings, names: Iterable[TableName]
) -> Iterator[tuple[str, CheckFinding]]:
    """Find tables that share a topic, or the name of an Avro record."""
    prefix = settings.database.prefix
    shared: dict[tuple[str, str], list[TableName]] = {}
    for name in names:
        topic = topics.table_topic(prefix, name)
        shared.setdefault(("topic", _as_kafka_compares(topic)), []).append(name)
        if settings.relay.rows.format is RecordFormat.AVRO:
            record = sanitized_path(f"{prefix}.{name.joined}")
            shared.setdefault(("Avro name", record), []).append(name)
    for (kind, place), several in shared.items():
        if len(several) > 1:
            texts = [name.text for name in sorted(several)]
            used = place if kind != "topic" else _listed(prefix, sorted(several))
            finding = error_finding(
                "table-topic-shared",
                f"the tables {' and '.join(texts)} share one {kind}: {used}",
                "the rows of one would overwrite and delete those of the other",
                _REMEDY_FOR_BOTH,
            )
            yield from ((text, finding) for text in texts)


def _former_findings(
    settings: Settings, names: Collection[TableName], announced: Collection[TableName]
) -> Iterator[tuple[str, CheckFinding]]:
    """Find tables whose topic has rows of a table that is no longer captured."""
    prefix = settings.database.prefix
    former: dict[str, TableName] = {
        _as_kafka_compares(topics.table_topic(prefix, name)): name
        for name in announced
        if name not in names
    }
    for name in names:
        topic = topics.table_topic(prefix, name)
        other = former.get(_as_kafka_compares(topic))
        if other is not None and name not in announced:
            yield (
                name.text,
                error_finding(
                    "table-topic-former",
                    f"the topic of {name.text}, {topic}, has the rows of {other.text}",
                    "the rows of one would overwrite and delete those of the other",
                    f"{_REMEDY_FOR_ONE}; or delete that topic, if nobody needs its "
                    "rows, and run towpath relay state repair",
                ),
            )


def _reserved_findings(
    settings: Settings, names: Iterable[TableName]
) -> Iterator[tuple[str, CheckFinding]]:
    """Find tables whose topic has another use, or a name that Kafka does not allow."""
    prefix = settings.database.prefix
    reserved = _reserved(settings)
    for name in names:
        topic = topics.table_topic(prefix, name)
        use = reserved.get(_as_kafka_compares(topic))
        if topic.startswith(topics.dead_letter_topic(prefix, "")):
            use = "dead letters"
        elif topics.is_backfill(topic):
            use = "the rows of a snapshot for one sink"
        if use is not None:
            what = f"the topic of the table {name.text}, {topic}, is the topic of {use}"
            yield (
                name.text,
                error_finding(
                    "table-topic-reserved",
                    what,
                    "readers could not tell their records apart",
                    _REMEDY_FOR_ONE,
                ),
            )
        elif not topics.is_legal_topic(topic):
            yield (
                name.text,
                error_finding(
                    "table-topic-too-long",
                    f"the topic of the table {name.text} has {len(topic)} characters",
                    f"Kafka allows {topics.MAX_TOPIC_LENGTH}",
                    f"shorten [source] prefix, or {_REMEDY_FOR_ONE}",
                ),
            )


def _reserved(settings: Settings) -> Mapping[str, str]:
    """Return the use of each reserved topic, by the name that Kafka compares."""
    outbox, relay = settings.relay.outbox, topics_of_relay(settings.database.prefix)
    events = {
        outbox.topic_of(view.aggregate_type): f"the events of {view.aggregate_type}"
        for view in outbox.view
    }
    uses = {
        **events,
        **dict.fromkeys(relay, "the relay itself"),
        settings.signal_topic: "signals",
    }
    return {_as_kafka_compares(topic): use for topic, use in uses.items() if topic}


def _listed(prefix: str, names: Iterable[TableName]) -> str:
    """Return the tables' topics as text; Kafka may not distinguish them."""
    found = dict.fromkeys(topics.table_topic(prefix, name) for name in names)
    if len(found) == 1:
        return next(iter(found))
    return f"{' and '.join(found)}, which Kafka does not distinguish"


def _as_kafka_compares(topic: str) -> str:
    return topic.replace(".", "_")


class CapturedTables(Collection[str]):
    """
    The captured tables as ``schema.table``, in the order of their capture.

    Attributes:
        announced: The tables whose rows were in topics at the last start.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = tuple(dict.fromkeys(names))
        self.announced: frozenset[TableName] = frozenset()

    def start(self, names: Iterable[str], announced: Iterable[TableName]) -> None:
        """Replace the names and the announced tables, at the start of a session."""
        self.replace(names)
        self.announced = frozenset(announced)

    def replace(self, names: Iterable[str]) -> None:
        """Replace the names; thread-safe."""
        self._names = tuple(dict.fromkeys(names))

    @property
    def names(self) -> tuple[str, ...]:
        """The names as a tuple, which later changes do not affect."""
        return self._names

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Collections(Collection[str]):
    """The captured tables, which may change, together with fixed collections."""

    def __init__(self, tables: CapturedTables, fixed: Iterable[str]) -> None:
        self._tables = tables
        self._fixed = tuple(fixed)

    def __contains__(self, name: object) -> bool:
        return name in self._fixed or name in self._tables

    def __iter__(self) -> Iterator[str]:
        return iter((*self._tables.names, *self._fixed))

    def __len__(self) -> int:
        return len(self._tables) + len(self._fixed)
