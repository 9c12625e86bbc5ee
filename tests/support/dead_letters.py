"""Dead letters in memory, and what a batch writer has at hand beside its sink."""

from pathlib import Path

from towpath.sinks.apply.batch import SinkContext
from towpath.sinks.apply.refetch import PendingRefetches
from towpath.sinks.apply.sweeps import SafePosition
from towpath.sinks.dead_letters.entries import (
    DeadLetter,
    DeadLetterRequest,
    dead_letter_headers,
    entry_content,
    entry_of,
)
from towpath.sinks.dead_letters.parked import ParkedKeys
from towpath.sinks.errors import BrokerUnavailableError


class Letters:
    """
    A dead-letter topic in a list, written and read as the real one.

    ``fail`` makes the broker go away.
    """

    def __init__(self, *, fail=False):
        self.records = []
        self.fail = fail
        self._seen = 0

    def put(self, letters):
        """Take records."""
        given = [
            (x.record.key, x.record.value, dead_letter_headers(x)) for x in letters
        ]
        self._write(given)
        return len(given)

    def resolve(self, endings):
        """Take endings."""
        self._write([self._other(ending) for ending in endings])

    def reply(self, answer):
        """Take an answer."""
        self._write([self._other(answer)])

    def request(self, *orders):
        """Take orders."""
        self._write([self._other(order) for order in orders])

    def entries(self):
        """Read all of it."""
        self._seen = len(self.records)
        return iter([entry_of(*record) for record in self.records])

    def requests(self):
        """Read on."""
        new = [entry_of(*record) for record in self.records[self._seen :]]
        self._seen = len(self.records)
        return [entry for entry in new if isinstance(entry, DeadLetterRequest)]

    def close(self):
        """Nothing to let go of."""

    def told(self):
        """Return offset and reason of each letter."""
        return [
            (entry.record.origin.offset, entry.reason)
            for entry in self.entries()
            if isinstance(entry, DeadLetter)
        ]

    def _write(self, records):
        if self.fail:
            message = "no broker"
            raise BrokerUnavailableError(message)
        self.records += records

    @staticmethod
    def _other(entry):
        headers, value = entry_content(entry)
        return entry.subject.key, value, headers


class AtOnce:
    """Floors that count as soon as they are told."""

    def counting(self, floors):
        """Let all of them count."""
        return tuple(floors)

    def carried_out(self, floors):
        """Take note of nothing."""


class Asked:
    """
    Repairs that remember what they were asked for; ``can`` is their answer.

    ``by_key`` is it where keys are asked for. ``reading`` gets the routes that are read
    from then on, as the real ones note them.
    """

    def __init__(self, *, can=True, by_key=True, reading=None):
        self.keys = []
        self.routes = []
        self._can = can
        self._can_by_key = can and by_key
        self._reading = reading

    def request_keys(self, route, keys):
        """Take keys."""
        self.keys += [(route, key) for key in keys] if self._can_by_key else []
        return self._can_by_key

    def request_all(self, route, why):
        """Take a route."""
        self.routes += [(route, why)] if self._can else []
        if self._can and self._reading is not None:
            self._reading[route] = f"repair-{len(self.routes)}"
        return self._can


class Still:
    """A clock that stands still."""

    def monotonic_s(self):
        """Return no time."""
        return 0.0


class Heads:
    """Topics whose lowest position is given."""

    def __init__(self, position):
        self._position = position

    def lowest_position(self, _names):
        """Return the position."""
        return self._position


class InMind(PendingRefetches):
    """Pending refetches in the test's memory: ``file`` survives a crash.

    ``routes`` are those that lost rows; ``reading`` are those that were asked for as
    wholes, with the snapshot that reads them.
    """

    def __init__(self, file=None, clock=None, routes=None, reading=None):
        self.file = {} if file is None else file
        self.routes = set() if routes is None else routes
        self.reading = {} if reading is None else reading
        super().__init__(Path("nowhere"), "cache", ["orders"], clock or Still())

    def again(self):
        """Begin again, as after a death."""
        return InMind(self.file, self._clock, self.routes, self.reading)

    def _reading(self):
        lost = {route: frozenset({"lost"}) for route in self.routes}
        asked = {route: frozenset({id_}) for route, id_ in self.reading.items()}
        # A loss that is noted takes the place of what was noted before.
        return asked | lost

    def _read(self):
        return self.file.get("it", b"")

    def _write(self, content):
        self.file["it"] = content


def context_of(letters, *, parked=None, repairs=None, refetches=None, heads=None):
    """Put a desk together; by default nobody can be asked for rows."""
    safe = SafePosition(heads, Still())
    safe.look(list)
    return SinkContext(
        refetches=InMind() if refetches is None else refetches,
        dead_letters=letters,
        parked=ParkedKeys() if parked is None else parked,
        sweeps=AtOnce(),
        repairs=Asked(can=False) if repairs is None else repairs,
        safe=safe,
        clock=Still(),
    )
