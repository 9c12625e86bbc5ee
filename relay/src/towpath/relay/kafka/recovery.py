"""
Reads the relay's topics at start, and for a repair of its state.

``read_tails`` reads the records' headers, from the mark of each partition to its end: a
process that died may have published records after storing its last marks. A partition
whose end offset is below its mark was truncated or recreated; its records are lost, so
the start fails.

``scan_topics`` finds marks for a repair that has none. Positions of streamed records
only rise within a partition, but replayed dead letters have lower ones, so the highest
position covers all records. The scan looks for it in a window at the end of the
partition that is larger than the number of dead letters, and widens the window if it
holds no streamed record. A topic in which no record has a position is not the relay's.
A row change also has the commit LSN of the source, which proves the offset of its
lineage.

``read_parked`` reads all dead letters. ``read_announced`` reads the relations topic,
which names the tables whose rows are in topics.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Final, NamedTuple

import orjson
import structlog
from confluent_kafka import Message

from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.errors import PartitionCountChangedError, TopicTruncatedError
from towpath.relay.kafka.client import PartitionId, end_offsets
from towpath.relay.kafka.reading import TopicReader, partition_id
from towpath.relay.recovery.marks import Mark, TopicMarks
from towpath.schemas import headers, topics
from towpath.schemas.position import parse_position
from towpath.schemas.table_name import TableName
from towpath.schemas.topics import relations_topic, table_topic

# The maximum number of topics that an error message names.
_NAMED: Final = 5

_LOG = structlog.get_logger("towpath.relay.kafka")


class Tails(NamedTuple):
    """
    The marks and the log LSN found in the topics.

    Attributes:
        marks: The exact marks, by topic.
        log_lsn: The highest log LSN after the stored marks, READ rows included.
    """

    marks: Mapping[str, TopicMarks]
    log_lsn: int


def read_tails(
    reader: TopicReader, marks: Mapping[str, TopicMarks], *, is_transactional: bool
) -> Tails:
    """
    Return the exact marks and the highest log LSN, read from the topics.

    Args:
        reader: Reads committed records.
        marks: The stored marks.
        is_transactional: Whether only committed records count.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
        TopicTruncatedError: A partition's end offset is below its mark.
        PartitionCountChangedError: A topic's partition count has changed.
    """
    places = {
        (topic, partition): mark
        for topic, of_topic in marks.items()
        for partition, mark in of_topic.items()
    }
    log_lsn = 0
    if places:
        _check_counts(reader, marks)
        ends = end_offsets(reader.kafka, places)
        _check_ends(places, ends)
        longer = {at: places[at] for at, end in ends.items() if end > places[at][0]}
        if longer:
            scan = TailScan(longer)
            if is_transactional:
                scan.run(reader)
            else:
                with TopicReader(reader.kafka, is_committed=False) as uncommitted:
                    scan.run(uncommitted)
            places |= scan.found
            log_lsn = scan.log_lsn
        places = {at: Mark(ends[at], mark.position) for at, mark in places.items()}
    exact = {
        topic: {at: places[topic, at] for at in of_topic}
        for topic, of_topic in marks.items()
    }
    return Tails(exact, log_lsn)


def require_topics(reader: TopicReader, marks: Mapping[str, TopicMarks]) -> None:
    """
    Make sure that each topic that had records still exists. Creates no topic.

    Raises:
        TopicTruncatedError: Topics are missing; the message describes them.
        BrokerUnavailableError: Kafka cannot be reached.
    """
    written = {topic: each for topic, each in marks.items() if published_count(each)}
    counts = reader.partition_counts() if written else {}
    missing = {topic: each for topic, each in written.items() if topic not in counts}
    if missing:
        raise TopicTruncatedError(describe_missing_topics(missing))


def published_count(marks: TopicMarks) -> int:
    """Return how many records a topic ever had, according to its marks."""
    return sum(mark.next_offset for mark in marks.values())


def describe_missing_topics(missing: Mapping[str, TopicMarks]) -> str:
    """Describe missing topics, and their lost records."""
    lines = []
    for topic, marks in sorted(missing.items()):
        highest = max((m.position for m in marks.values() if m.position), default=b"")
        last = f", the last change at {highest.decode()}" if highest else ""
        lines.append(
            f"topic {topic} no longer exists: it had {published_count(marks)} records "
            f"in {len(marks)} partitions{last}"
        )
    more = len(lines) - _NAMED
    return "; ".join(lines[:_NAMED]) + (f"; and {more} more topics" if more > 0 else "")


def _check_counts(reader: TopicReader, marks: Mapping[str, TopicMarks]) -> None:
    counts = reader.partition_counts()
    for topic, of_topic in marks.items():
        count = counts.get(topic, 0)
        if not count:
            raise TopicTruncatedError(describe_missing_topics({topic: of_topic}))
        if count != len(of_topic):
            reason = f"topic {topic} changed from {len(of_topic)} to {count} partitions"
            raise PartitionCountChangedError(reason)


def _check_ends(
    places: Mapping[PartitionId, Mark], ends: Mapping[PartitionId, int]
) -> None:
    for (topic, partition), mark in sorted(places.items()):
        end = ends[topic, partition]
        if end < mark.next_offset:
            what = "no longer exists" if end < 0 else f"ends at {end}"
            reason = (
                f"partition {partition} of {topic} {what}, "
                f"but had reached {mark.next_offset}"
            )
            raise TopicTruncatedError(reason)


class TailScan:
    """Reads partitions from their marks to their ends."""

    def __init__(self, places: Mapping[PartitionId, Mark]) -> None:
        self.found = dict(places)
        self.log_lsn = 0

    def run(self, reader: TopicReader) -> None:
        """
        Read each partition to its end.

        Raises:
            BrokerUnavailableError: Kafka cannot be reached.
        """
        starts = {at: mark.next_offset for at, mark in self.found.items()}
        what = "the tails of the relay's topics"
        for message in reader.read_to_ends(starts, what):
            self.take(message)

    def take(self, message: Message) -> None:
        """Move the partition's mark to a streamed record; READ rows do not move it."""
        found_headers = dict(message.headers() or ())
        position = _position_in(found_headers)
        if position is None:
            return
        self.log_lsn = max(self.log_lsn, parse_position(position.decode()).log_lsn)
        at = partition_id(message)
        before = self.found[at].position
        is_streamed = headers.SNAPSHOT not in found_headers
        if is_streamed and (before is None or position > before):
            self.found[at] = self.found[at]._replace(position=position)


def streamed_position(message: Message) -> bytes | None:
    """Return the position of a streamed record; None for any other record."""
    found_headers = dict(message.headers() or ())
    if headers.SNAPSHOT in found_headers:
        return None
    return _position_in(found_headers)


def _position_in(found_headers: Mapping[str, str | bytes | None]) -> bytes | None:
    """Return a record's position; another program may use a header of that name."""
    position = found_headers.get(headers.POSITION)
    if not isinstance(position, bytes):
        return None
    try:
        parse_position(position.decode())
    except ValueError:
        return None
    return position


_PART: Final = "relay"

# Far more records than one change has, far fewer than a topic has.
_WINDOW: Final = 1_000
_WIDER: Final = 20


class TopicContents(NamedTuple):
    """
    The marks and lineage offsets that records prove.

    Attributes:
        marks: Exact marks of each of the relay's topics.
        offsets: The lineage offsets that row changes prove, by their log LSN.
        published_log_lsn: The highest log LSN of any record, READ rows included.
    """

    marks: Mapping[str, TopicMarks]
    offsets: Mapping[int, int]
    published_log_lsn: int


class PartitionScan:
    """The scan of one partition, backwards from its end."""

    def __init__(self, end: int, window: int = _WINDOW) -> None:
        self.end = end
        self.start = max(0, end - window)
        self.position: bytes | None = None
        self.log_lsn = 0
        self.is_ours = False
        self.proof: tuple[int, int] | None = None

    @property
    def is_settled(self) -> bool:
        """Whether a wider window would find nothing more."""
        return self.position is not None or not self.is_ours or self.start == 0

    def widen(self) -> None:
        """Widen the window."""
        self.start = max(0, self.end - (self.end - self.start) * _WIDER)

    def take(self, message: Message) -> None:
        """Read one record; a READ row raises the log LSN, but sets no position."""
        found = _position_in(dict(message.headers() or ()))
        if found is not None:
            self.is_ours = True
            self.log_lsn = max(self.log_lsn, parse_position(found.decode()).log_lsn)
        position = streamed_position(message)
        if position is None or (self.position is not None and position < self.position):
            return
        self.position = position
        self.proof = _commit_evidence(message, position) or self.proof


def scan_topics(
    reader: TopicReader, names: Iterable[str], prefix: str
) -> TopicContents:
    """
    Return the marks and lineage offsets that the topics' records prove.

    Args:
        reader: Reads committed records.
        names: The topics to scan.
        prefix: The topics' prefix.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
    """
    counts = reader.partition_counts()

    def ends_of(wanted: Iterable[str]) -> Mapping[PartitionId, int]:
        places = [(topic, n) for topic in wanted for n in range(counts.get(topic, 0))]
        return end_offsets(reader.kafka, places) if places else {}

    # A partition may end with replays of all dead letters that ever existed.
    letters = ends_of([topics.dead_letter_topic(prefix, _PART)])
    window = _WINDOW + sum(max(0, end) for end in letters.values())
    ends = ends_of(frozenset(names))
    places = {at: PartitionScan(max(0, end), window) for at, end in ends.items()}
    open_places = {at: place for at, place in places.items() if place.end}
    while open_places:
        _read_windows(reader, open_places)
        open_places = {a: p for a, p in open_places.items() if not p.is_settled}
        for place in open_places.values():
            place.widen()
    return topic_contents(places)


def topic_contents(places: Mapping[PartitionId, PartitionScan]) -> TopicContents:
    """Combine the marks and offsets that the scans of partitions prove."""
    ours = {topic for (topic, _), place in places.items() if place.is_ours}
    return TopicContents(
        marks={
            topic: {
                n: Mark(place.end, place.position)
                for (name, n), place in sorted(places.items())
                if name == topic
            }
            for topic in sorted(ours)
        },
        offsets=dict(place.proof for place in places.values() if place.proof),
        published_log_lsn=max((each.log_lsn for each in places.values()), default=0),
    )


def marked_ends(
    reader: TopicReader, marks: Mapping[str, TopicMarks]
) -> dict[PartitionId, int]:
    """
    Return the end offset of each marked partition; -1 for a missing one.

    Missing topics are left out of the request: if it named one, the client would return
    no offsets at all.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
    """
    counts = reader.partition_counts()
    places = [(topic, n) for topic, of_topic in marks.items() for n in of_topic]
    existing = [(topic, n) for topic, n in places if n < counts.get(topic, 0)]
    found = end_offsets(reader.kafka, existing) if existing else {}
    return {at: found.get(at, -1) for at in places}


def _read_windows(
    reader: TopicReader, places: Mapping[PartitionId, PartitionScan]
) -> None:
    """Read each window to its end."""
    starts = {at: place.start for at, place in places.items()}
    for message in reader.read_to_ends(starts, "the ends of the topics"):
        places[partition_id(message)].take(message)


def _commit_evidence(message: Message, position: bytes) -> tuple[int, int] | None:
    """Return the log LSN and the lineage offset, if the record has its commit LSN."""
    try:
        value = orjson.loads(message.value() or b"")
        value = value.get("payload", value)
        commit_lsn = int(value["source"]["commit_lsn"])
        log_lsn = parse_position(position.decode()).log_lsn
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return log_lsn, log_lsn - commit_lsn


def read_parked(
    reader: TopicReader, prefix: str, max_parked_keys: int
) -> ParkedAggregates:
    """
    Return the parked aggregates. Call order: after ``require_topics``.

    Args:
        reader: Reads committed records.
        prefix: The topics' prefix.
        max_parked_keys: How many aggregates may be parked at the same time.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
        BrokerRefusedError: Kafka refuses the topic.
        ParkedOverflowError: More aggregates are parked than allowed.
    """
    topic = topics.dead_letter_topic(prefix, _PART)
    parked = ParkedAggregates(max_parked_keys)
    starts = dict.fromkeys(
        ((topic, at) for at in range(reader.partition_counts().get(topic, 0))), 0
    )
    if starts:
        _apply_records(reader.read_to_ends(starts, topic), parked)
        if parked.needs_second_reading:
            # Dead letters above a release were read before it, from another partition.
            parked.forget_dead_letters()
            _apply_records(reader.read_to_ends(starts, topic), parked)
        parked.check()
    return parked


def _apply_records(messages: Iterable[Message], parked: ParkedAggregates) -> None:
    for message in messages:
        found = message.headers() or []
        marks = found.items() if isinstance(found, dict) else found
        parked.restore(message.key(), message.value(), marks)


_DESCRIPTION: Final = "the announced tables"


class AnnouncedColumn(NamedTuple):
    """A published column, its type, and its name in the table."""

    name: str
    type: str
    source_name: str


class AnnouncedTable(NamedTuple):
    """The newest announcement of a table: its position and its published columns."""

    position: str
    columns: tuple[AnnouncedColumn, ...]


def read_announced(reader: TopicReader, prefix: str) -> frozenset[TableName]:
    """
    Return the announced tables whose topics still exist; warn of a foreign record.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
        BrokerRefusedError: Kafka refuses the topic.
    """
    # One is enough for a warning.
    foreign: deque[Message] = deque(maxlen=1)
    announced = frozenset(read_announced_tables(reader, prefix, foreign.append))
    for message in foreign:
        _LOG.warning(
            "topic of relations has a record from another program: ignoring it",
            topic=message.topic(),
            partition=message.partition(),
            offset=message.offset(),
        )
    return announced


def _ignore(_: Message) -> None:
    """Ignore a record from another program."""


def read_announced_tables(
    reader: TopicReader, prefix: str, on_foreign: Callable[[Message], None] = _ignore
) -> Mapping[TableName, AnnouncedTable]:
    """
    Return the newest announcement of each table whose topic still exists.

    Args:
        reader: Reads the topic.
        prefix: The topics' prefix.
        on_foreign: Called with each record that another program wrote.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
        BrokerRefusedError: Kafka refuses the topic.
    """
    topic, existing = relations_topic(prefix), reader.partition_counts()
    if topic not in existing:
        return {}
    starts = {(topic, partition): 0 for partition in range(existing[topic])}
    found: dict[TableName, AnnouncedTable] = {}
    for message in reader.read_to_ends(starts, _DESCRIPTION):
        value = message.value()
        if value is None:
            continue
        announced = _announcement(value)
        if announced is None:
            on_foreign(message)
            continue
        name, table = announced
        # A restarted relay repeats older announcements.
        is_newer = name not in found or table.position >= found[name].position
        if is_newer and table_topic(prefix, name) in existing:
            found[name] = table
    return found


def _announcement(value: bytes) -> tuple[TableName, AnnouncedTable] | None:
    """Return a table and its announcement; None if another program wrote the record."""
    try:
        document = orjson.loads(value)
        columns = tuple(
            AnnouncedColumn(
                each["name"], each["type"], each.get("source_name") or each["name"]
            )
            for each in document["columns"]
        )
        names = document["schema"], document["table"], document["position"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if not all(isinstance(each, str) for each in chain(names, *columns)):
        return None
    schema, table, position = names
    return TableName(schema, table), AnnouncedTable(position, columns)
