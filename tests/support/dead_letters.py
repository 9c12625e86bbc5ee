"""Dead letters in memory, and the rest of a batch writer's context."""

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
    A dead-letter topic in a list, written and read like the real one.

    ``fail`` makes the broker unreachable.
    """

    def __init__(self, *, fail=False):
        self.records = []
        self.fail = fail
        self._seen = 0

    def put(self, letters):
        """Append dead letters."""
        given = [
            (x.record.key, x.record.value, dead_letter_headers(x)) for x in letters
        ]
        self._write(given)
        return len(given)

    def resolve(self, resolutions):
        """Append resolutions."""
        self._write([self._as_record(resolution) for resolution in resolutions])

    def reply(self, answer):
        """Append an answer."""
        self._write([self._as_record(answer)])

    def request(self, *requests):
        """Append requests."""
        self._write([self._as_record(request) for request in requests])

    def entries(self):
        """Read the whole topic."""
        self._seen = len(self.records)
        return iter([entry_of(*record) for record in self.records])

    def requests(self):
        """Return the requests that were appended since the last read."""
        new = [entry_of(*record) for record in self.records[self._seen :]]
        self._seen = len(self.records)
        return [entry for entry in new if isinstance(entry, DeadLetterRequest)]

    def close(self):
        """Do nothing: there is no client to close."""

    def reasons(self):
        """Return the offset and the reason of each dead letter."""
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
    def _as_record(entry):
        headers, value = entry_content(entry)
        return entry.subject.key, value, headers


class ImmediateFloors:
    """Floors that take effect immediately."""

    def record(self, floors):
        """Return all floors."""
        return tuple(floors)

    def mark_applied(self, floors):
        """Do nothing."""


class RecordedRepairs:
    """
    Repairs that record their requests; ``accepts`` is the answer to each.

    ``by_key`` is the answer to requests by key. ``reading`` gets the routes that are
    read in full, as the real repairs record them.
    """

    def __init__(self, *, accepts=True, by_key=True, reading=None):
        self.keys = []
        self.routes = []
        self._accepts = accepts
        self._accepts_by_key = accepts and by_key
        self._reading = reading

    def request_keys(self, route, keys):
        """Record keys."""
        self.keys += [(route, key) for key in keys] if self._accepts_by_key else []
        return self._accepts_by_key

    def request_all(self, route, why):
        """Record a route."""
        self.routes += [(route, why)] if self._accepts else []
        if self._accepts and self._reading is not None:
            self._reading[route] = f"repair-{len(self.routes)}"
        return self._accepts


class StoppedClock:
    """A clock that always shows zero."""

    def monotonic_s(self):
        """Return zero."""
        return 0.0


class FixedPositions:
    """Topics whose lowest position is fixed."""

    def __init__(self, position):
        self._position = position

    def lowest_position(self, _names):
        """Return the position."""
        return self._position


class MemoryRefetches(PendingRefetches):
    """
    Pending refetches in the test's memory: ``file`` survives a crash.

    ``routes`` are those that lost rows; ``reading`` has the routes that were requested
    in full, with the snapshots that read them.
    """

    def __init__(self, file=None, clock=None, routes=None, reading=None):
        self.file = {} if file is None else file
        self.routes = set() if routes is None else routes
        self.reading = {} if reading is None else reading
        super().__init__(Path("nowhere"), "cache", ["orders"], clock or StoppedClock())

    def again(self):
        """Return an instance with the same state, as after a crash."""
        return MemoryRefetches(self.file, self._clock, self.routes, self.reading)

    def _reading(self):
        lost = {route: frozenset({"lost"}) for route in self.routes}
        requested = {route: frozenset({id_}) for route, id_ in self.reading.items()}
        # A recorded loss replaces the earlier entry of the route.
        return requested | lost

    def _read(self):
        return self.file.get("it", b"")

    def _write(self, content):
        self.file["it"] = content


def context_of(letters, *, parked=None, repairs=None, refetches=None, heads=None):
    """Build a context; by default no rows can be requested."""
    safe = SafePosition(heads, StoppedClock())
    safe.check(list)
    return SinkContext(
        refetches=MemoryRefetches() if refetches is None else refetches,
        dead_letters=letters,
        parked=ParkedKeys() if parked is None else parked,
        sweeps=ImmediateFloors(),
        repairs=RecordedRepairs(accepts=False) if repairs is None else repairs,
        safe=safe,
        clock=StoppedClock(),
    )
