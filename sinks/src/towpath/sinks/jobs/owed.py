"""
Rows that were asked for and have not come yet: what partial changes leave open.

A partial change is right upon the row that was there before it, and upon no other. It
rests upon nothing if the target has no row; and while a route lacks rows, what the
target has may be older than the row was. So the row is asked for, as it is now.

Until it comes, whatever else is partial would be laid upon the same wrong row, at a
position above the answer, which would then be refused as stale: the row would be wrong
for good. So a row is owed until something whole stands above all partial changes of it.
Something whole that stands below the newest of them, and above the one that was asked
for, has come too early, and the row is asked for once more: there is one question for a
row at a time, however often it changes. A question that nobody answers is asked again
with the next partial change, after a while.

With too many rows of one route, all of it is asked for; while it lacks rows anyway, for
that is asked before, that waits until it has them: one question for a route at a time.

What is owed is kept in a file, written before the batch counts as done.
"""

from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import orjson

from towpath.schemas.clock import Clock
from towpath.sinks import unfilled
from towpath.sinks.change import Change, Floor, Record, Value
from towpath.sinks.dead_letters.letter import ParkedKey, shared_topic
from towpath.sinks.fold import highest_per_route
from towpath.sinks.progress import replace_file, sink_folder

OWED_FILE: Final = "owed.json"
# With more of one route all of it is read; so the file stays small.
MAX_OWED: Final = 20_000
ASKED_AGAIN_AFTER_S: Final = 60.0


class Owing(NamedTuple):
    """
    What is known of a row that is owed.

    Attributes:
        record_key: The row's key as its records have it.
        asked_at: The position of the change that it was asked for.
        highest: That of the newest partial change since.
        asked_s: When it was asked for.
    """

    record_key: ParkedKey
    asked_at: str
    highest: str
    asked_s: float


# A route, and a key of it.
Row: TypeAlias = tuple[str, tuple[Value, ...]]


class Due(NamedTuple):
    """
    What a batch makes of what is owed.

    Attributes:
        rows: What is known of rows from now on; ``None``: they are not owed any more.
        ask: The rows to be asked for, in this order.
    """

    rows: dict[Row, Owing | None]
    ask: dict[Row, None]

    def forget(self, route: str) -> None:
        """Forget what was owed of a route: its rows cannot be told one by one."""
        self.rows.update(dict.fromkeys(row for row in self.rows if row[0] == route))


class Owed:
    """The rows that are owed to one sink."""

    def __init__(
        self, state_folder: Path, sink: str, routes: Collection[str], clock: Clock
    ) -> None:
        """
        Recall what is owed.

        Args:
            state_folder: Where it is kept.
            sink: Whose it is.
            routes: The sink's; of one that is gone nothing is owed.
            clock: For questions that nobody answers.
        """
        self._routes = frozenset(routes)
        self._state_folder = state_folder
        self._sink = sink
        self._clock = clock
        self._path = sink_folder(state_folder, sink) / OWED_FILE
        self._rows, self._put_off = self._read()

    def __len__(self) -> int:
        """Return how many rows are owed."""
        return len(self._rows)

    def record_keys(self) -> frozenset[ParkedKey]:
        """Return the keys of the rows that are owed, as records have them."""
        return frozenset(owing.record_key for owing in self._rows.values())

    def lacking(self) -> frozenset[str]:
        """Return the routes that lack rows: nothing may rest upon what they have."""
        return frozenset(unfilled.routes(self._state_folder, self._sink))

    def has_room(self, route: str, rows: Iterable[Row]) -> bool:
        """Tell whether these rows of a route can be owed beside those that are."""
        owed = {row for row in self._rows if row[0] == route}
        return len(owed.union(rows)) <= MAX_OWED

    def put_off(self, route: str) -> None:
        """Have a route asked for as a whole once it has the rows that it lacks."""
        if route not in self._put_off:
            self._store(self._rows, self._put_off | {route})

    def overdue(self) -> frozenset[str]:
        """Return the routes that were put off, and lack nothing now."""
        return self._put_off - self.lacking() if self._put_off else frozenset()

    def asked_whole(self, route: str) -> None:
        """Take note that a route was asked for as a whole: nothing of it is owed."""
        rows = {row: owing for row, owing in self._rows.items() if row[0] != route}
        self._store(rows, self._put_off - {route})

    def owe(self, row: Row, record_key: ParkedKey, position: str) -> None:
        """Take note of a row that was asked for because it lacks a change."""
        known = self._rows.get(row)
        highest = position if known is None else max(position, known.highest)
        now_s = self._clock.monotonic_s()
        self.take(Due({row: Owing(record_key, highest, highest, now_s)}, {}))

    def due(
        self,
        written: Iterable[Change],
        absent: Collection[Change],
        records: Iterable[Record],
    ) -> Due:
        """
        Hold a batch against what is owed.

        Args:
            written: Its changes that are applied, or stale.
            absent: Its partial changes that found no row.
            records: All of it.
        """
        due = Due({}, {})
        lacking = self.lacking()
        if not (lacking or absent or self._rows):
            return due
        told = [c for c in written if self._matters(c, lacking)]
        if told or absent:
            keys = {record.origin: record.key or b"" for record in records}
            lost = {id(change) for change in absent}
            for change in sorted((*told, *absent), key=attrgetter("position")):
                topic = shared_topic(change.origin.topic)
                record_key = ParkedKey(topic, keys[change.origin])
                is_doubtful = change.route in lacking or id(change) in lost
                self._judge(change, record_key, due, is_doubtful=is_doubtful)
        return due

    def take(self, due: Due, floors: Iterable[Floor] = ()) -> None:
        """Keep what a batch has made of it, durably; what was to be asked for, is."""
        below = highest_per_route(floors)
        if not due.rows and not (below and self._rows):
            return
        rows = {
            row: owing
            for row, owing in (self._rows | due.rows).items()
            if owing is not None and owing.highest >= below.get(row[0], "")
        }
        self._store(rows, self._put_off)

    def _matters(self, change: Change, lacking: Collection[str]) -> bool:
        is_open = bool(change.unchanged) and change.route in lacking
        return is_open or (change.route, change.key) in self._rows

    def _judge(
        self, change: Change, record_key: ParkedKey, due: Due, *, is_doubtful: bool
    ) -> None:
        """Say what a change makes of its row, after those below it."""
        row = change.route, change.key
        position, now_s = change.position, self._clock.monotonic_s()
        owing = due.rows.get(row, self._rows.get(row))
        if not change.unchanged:
            if owing is None:
                return
            if position >= owing.highest:
                due.rows[row] = None
                due.ask.pop(row, None)
                return
            is_asking = position > owing.asked_at
            highest = owing.highest
        elif owing is None and row in due.rows and not is_doubtful:
            # Laid upon what has settled it in this very batch.
            return
        else:
            is_old = owing is not None and now_s - owing.asked_s > ASKED_AGAIN_AFTER_S
            is_asking = owing is None or is_old
            highest = position if owing is None else max(position, owing.highest)
        if is_asking:
            due.ask[row] = None
            due.rows[row] = Owing(record_key, highest, highest, now_s)
        elif owing is not None:
            due.rows[row] = owing._replace(highest=highest)

    def _store(self, rows: dict[Row, Owing], put_off: frozenset[str]) -> None:
        if (rows, put_off) != (self._rows, self._put_off):
            self._keep(_written(rows, put_off))
        self._rows, self._put_off = rows, put_off

    def _read(self) -> tuple[dict[Row, Owing], frozenset[str]]:
        content = self._kept()
        if not content:
            return {}, frozenset()
        told = orjson.loads(content)
        now_s = self._clock.monotonic_s()
        rows = {
            (route, tuple(key)): Owing(
                ParkedKey(topic, text.encode()), asked_at, highest, now_s
            )
            for route, key, topic, text, asked_at, highest in told["rows"]
            if route in self._routes
        }
        return rows, self._routes.intersection(told["put_off"])

    def _kept(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def _keep(self, content: bytes) -> None:
        replace_file(self._path, content)


def _written(rows: Mapping[Row, Owing], put_off: Iterable[str]) -> bytes:
    told = [
        [route, key, *_text(owing.record_key), owing.asked_at, owing.highest]
        for (route, key), owing in rows.items()
    ]
    return orjson.dumps({"rows": told, "put_off": sorted(put_off)})


def _text(key: ParkedKey) -> tuple[str, str]:
    return key.topic, key.key.decode()
