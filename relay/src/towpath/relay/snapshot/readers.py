"""
The readers of one table, as one.

Each has a range of the table's keys; the list of keys to be read by name they share.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import NamedTuple

from towpath.relay.snapshot.effects import EmitRows, ReadChunk
from towpath.relay.snapshot.errand import Errand, reached
from towpath.relay.snapshot.facts import ChunkRead, Fact, WatermarkSeen
from towpath.relay.snapshot.pace import Pace
from towpath.relay.snapshot.reading import Reading
from towpath.relay.snapshot.shape import Key, KeyRange
from towpath.relay.snapshot.stored import Settled, StoredTable


class Asking(NamedTuple):
    """
    When and how chunks are asked for.

    Attributes:
        pace: How many rows, and when.
        may_ask: Tells whether there is room for another chunk.
    """

    pace: Pace
    may_ask: Callable[[], bool]


class Readers:
    """All readers of a table; there are none before its plan is read."""

    def __init__(self, waiting: Iterable[Key]) -> None:
        self.waiting: dict[Key, None] = dict.fromkeys(waiting)
        self._readings: list[Reading] = []
        # The chunk that was read just now: its high mark will do as the next one's low.
        self.just_read: int | None = None

    def __bool__(self) -> bool:
        return bool(self._readings)

    @property
    def in_flight(self) -> int:
        """How many chunks were asked for and are not acknowledged."""
        return sum(reading.in_flight for reading in self._readings)

    @property
    def has_ready(self) -> bool:
        """Whether there are rows that the stream has passed."""
        return any(reading.has_ready for reading in self._readings)

    @property
    def are_through(self) -> bool:
        """Whether every range is delivered; keys may wait to be read again."""
        return all(reading.is_done for reading in self._readings)

    def begin(self, errand: Errand, ranges: Iterable[KeyRange]) -> None:
        """Put a reader on each range; without any, one that reads waiting keys."""
        self._readings = [Reading(errand, one) for one in ranges]
        if not self._readings:
            self._readings = [Reading(errand, None)]

    def progress(self, stored: StoredTable) -> StoredTable:
        """Return what a restart needs to know now."""
        held = chain.from_iterable(reading.held_keys() for reading in self._readings)
        ranges = tuple(reading.range for reading in self._readings if reading.range)
        return stored._replace(
            ranges=ranges,
            last_key=reached(ranges),
            pending_keys=tuple(dict.fromkeys(chain(self.waiting, held))),
        )

    def see(self, mark: WatermarkSeen) -> None:
        """Take in a watermark from the stream."""
        for reading in self._readings:
            reading.see(mark)

    def heard(self, fact: Fact) -> None:
        """Take in what is told now: only straight after a chunk its mark will do."""
        self.just_read = fact.chunk_id if isinstance(fact, ChunkRead) else None

    def take(self, fact: ChunkRead, pace: Pace) -> None:
        """Take in a chunk, if it is one of ours."""
        for reading in self._readings:
            if reading.request_id == fact.chunk_id:
                if reading.take(fact.chunk):
                    pace.aim(fact.chunk)
                pace.succeeded(len(fact.chunk.rows))

    def give_up(self, request_id: int) -> bool:
        """Forget a chunk that could not be read; false: it is none of ours."""
        failed = [r for r in self._readings if r.request_id == request_id]
        for reading in failed:
            reading.give_up()
        return bool(failed)

    def acknowledge(self, chunk_id: int) -> None:
        """Take in that Kafka has a chunk's rows."""
        for reading in self._readings:
            reading.acknowledge(chunk_id)

    def refuse(self, chunk_id: int, keys: tuple[Key, ...]) -> None:
        """Take in that rows of a chunk are dead letters."""
        for reading in self._readings:
            reading.refuse(chunk_id, keys)

    def cut(self) -> list[EmitRows]:
        """End the chunks that are judged in part where they are."""
        return list(chain.from_iterable([r.cut() for r in self._readings]))

    def rewind(self) -> list[EmitRows]:
        """Forget every row that is not judged: it will be read again."""
        return list(chain.from_iterable([r.rewind() for r in self._readings]))

    def leave(self) -> None:
        """Have no readers until the next ``begin``; the keys that wait stay."""
        held = chain.from_iterable(reading.held_keys() for reading in self._readings)
        self.waiting.update(dict.fromkeys(held))
        self._readings = []

    def judge(self, room: int) -> list[EmitRows]:
        """Judge so many rows at most, and return what is to be emitted at once."""
        effects: list[EmitRows] = []
        for reading in self._readings:
            while room > 0 and (part := reading.judge_next(room)) is not None:
                room -= part.judged
                effects += [part.emission] if part.emission else []
        return effects

    def settle(self) -> Settled:
        """Move what is stored over what is acknowledged; say how far that was."""
        settled = [reading.settle() for reading in self._readings]
        return Settled(
            chunks=sum(one.chunks for one in settled),
            rows=sum(one.rows for one in settled),
            dropped=sum(one.dropped for one in settled),
            undelivered=tuple(chain.from_iterable(s.undelivered for s in settled)),
        )

    def ask(self, asking: Asking) -> list[ReadChunk]:
        """Ask for as many chunks as there is room for, one for each reader."""
        asked: list[ReadChunk] = []
        just_read = self.just_read
        for reading in self._readings:
            if reading.is_full or not (asking.pace.may_read and asking.may_ask()):
                continue
            at_once = just_read is not None and reading.last_read == just_read
            ask = reading.ask(asking.pace.max_rows, at_once=at_once)
            asked += [ask] if ask else []
        return asked
