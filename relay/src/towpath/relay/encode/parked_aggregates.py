"""
Parked aggregates: a dead letter holds back the later events of its aggregate.

Each aggregate has spans of positions, as a flat list ``start, end, start, ...`` of
position texts; the last span is open while the aggregate is parked. An event is held if
its position is above a start and not above its end. Only positions decide, so the
result is the same for events that are streamed again after a crash: the relay reads the
dead letters from before the crash when it starts, and later ones have higher positions.

A span covers the dead letters between two releases. If a release is read after a dead
letter above it, from another partition, the span cannot be divided: then the dead
letters are read a second time, with all releases known.

An event without an aggregate type parks its id for every type, as its own type is
unknown; an event without an id parks nothing. This module also reads the headers of
dead letters that record parking and releases.
"""

import hashlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from towpath.relay.encode.record import Header
from towpath.relay.errors import ParkedOverflowError
from towpath.schemas import headers

# The longest id or type that is kept; a longer one is replaced by its hash.
MAX_ID_BYTES: Final = 2048

_NO_POSITION: Final = b""


@dataclass(slots=True)
class _ParkedSpans:
    """
    The spans of one aggregate.

    Attributes:
        bounds: Starts and ends in turn, ascending.
        last: The highest position of a dead letter.
        releases: The positions up to which events were released, ascending.
        is_mixed: Whether a span covers dead letters on both sides of a release that was
            read after them, so the span can no longer be divided.
    """

    bounds: list[bytes] = field(default_factory=list)
    last: bytes = _NO_POSITION
    releases: list[bytes] = field(default_factory=list)
    is_mixed: bool = False

    @property
    def is_open(self) -> bool:
        return len(self.bounds) % 2 == 1

    def holds(self, position: bytes) -> bool:
        return bisect_left(self.bounds, position) % 2 == 1

    def park(self, position: bytes) -> None:
        self.last = max(self.last, position)
        bounds, at = self.bounds, bisect_left(self.bounds, position)
        if at % 2 == 1:
            return
        # A span covers the dead letters between two releases, which may be read in any
        # order: from several partitions, or as they are acknowledged.
        release = bisect_left(self.releases, position)
        if at < len(bounds) and bisect_left(self.releases, bounds[at]) == release:
            bounds[at] = position
        elif at and bisect_left(self.releases, bounds[at - 1]) == release:
            bounds[at - 1] = position
        elif release < len(self.releases):
            bounds[at:at] = [position, position]
        else:
            bounds.append(position)

    def release(self, position: bytes) -> None:
        at = bisect_left(self.releases, position)
        if self.releases[at : at + 1] != [position]:
            self.releases.insert(at, position)
        if self.is_open and self.last <= position:
            self.bounds.append(self.last)
        elif bisect_right(self.bounds, position) % 2 == 1:
            self.is_mixed = True

    def forget_dead_letters(self) -> None:
        self.bounds.clear()
        self.last, self.is_mixed = _NO_POSITION, False


# The spans of aggregates, by id and then by type.
Spans = dict[bytes, dict[str | None, _ParkedSpans]]


class ParkedAggregates:
    """
    The parked aggregates, by id and then by type.

    ``max_keys`` limits how many may be parked at a time.
    """

    def __init__(self, max_keys: int) -> None:
        # Empty until the first dead letter or release: the hot path checks only this.
        self.spans: Spans = {}
        # By id: the releases that apply to all its types.
        self._released: dict[bytes, list[bytes]] = {}
        self._max_keys = max_keys
        self._open_count = 0

    def __len__(self) -> int:
        return self._open_count

    def park(
        self, aggregate_type: str | None, aggregate_id: bytes | None, position: bytes
    ) -> None:
        """
        Hold the aggregate's events above ``position``, even if they are streamed again.

        Raises:
            ParkedOverflowError: More aggregates are parked than allowed.
        """
        if aggregate_id is not None:
            self._park(aggregate_type, aggregate_id, position)
        self.check()

    def check(self) -> None:
        """
        Check the limit of parked aggregates.

        Raises:
            ParkedOverflowError: More aggregates are parked than allowed.
        """
        if self._open_count > self._max_keys:
            reason = f"parked aggregates exceed the limit of {self._max_keys}"
            raise ParkedOverflowError(reason)

    @property
    def needs_second_reading(self) -> bool:
        """Whether a release, read after dead letters above it, could not end a span."""
        return any(
            spans.is_mixed for types in self.spans.values() for spans in types.values()
        )

    def forget_dead_letters(self) -> None:
        """Keep only the releases: the dead letters will be read again."""
        self._open_count = 0
        for types in self.spans.values():
            for spans in types.values():
                spans.forget_dead_letters()

    def released_up_to(self, aggregate_type: str | None, aggregate_id: bytes) -> bytes:
        """Return the last position up to which the aggregate was released, or b""."""
        spans = self._spans_of(aggregate_type, parking_id(aggregate_id))
        return spans.releases[-1] if spans.releases else _NO_POSITION

    def release(
        self, aggregate_type: str | None, aggregate_id: bytes, position: bytes
    ) -> None:
        """Release events of one type, or those without a type, up to ``position``."""
        spans = self._spans_of(aggregate_type, parking_id(aggregate_id))
        self._release(spans, position)

    def release_all(self, aggregate_id: bytes, position: bytes) -> None:
        """Release events of every type up to ``position``."""
        known = parking_id(aggregate_id)
        insort(self._released.setdefault(known, []), position)
        for spans in self.spans.get(known, {}).values():
            self._release(spans, position)

    def _release(self, spans: _ParkedSpans, position: bytes) -> None:
        was_open = spans.is_open
        spans.release(position)
        self._open_count += spans.is_open - was_open

    def _park(
        self, aggregate_type: str | None, aggregate_id: bytes, position: bytes
    ) -> None:
        spans = self._spans_of(aggregate_type, parking_id(aggregate_id))
        was_open = spans.is_open
        spans.park(position)
        self._open_count += spans.is_open - was_open

    def _spans_of(self, aggregate_type: str | None, known: bytes) -> _ParkedSpans:
        types = self.spans.setdefault(known, {})
        aggregate_type = parking_type(aggregate_type)
        if aggregate_type not in types:
            types[aggregate_type] = _ParkedSpans(
                releases=self._released.get(known, [])[:]
            )
        return types[aggregate_type]

    def holds(
        self, aggregate_type: str | None, aggregate_id: bytes | None, position: bytes
    ) -> bool:
        """Return whether an event at ``position`` is held."""
        if aggregate_id is None:
            return False
        types = self.spans.get(parking_id(aggregate_id))
        if types is None:
            return False
        if aggregate_type is None:
            return any(spans.holds(position) for spans in types.values())
        found = (types.get(parking_type(aggregate_type)), types.get(None))
        return any(spans is not None and spans.holds(position) for spans in found)

    def restore(
        self, key: bytes | None, value: bytes | None, found: Iterable[Header]
    ) -> None:
        """
        Apply one record that was read from the dead-letter topic.

        A release has a key, no value, the header ``released`` with a position, and the
        header ``aggregate_type``, null for events without a type. A release without
        that header applies to every type of the id.
        """
        # If two headers share a name, the event's is first and the dead letter's last.
        by_name = {name: _as_bytes(value) for name, value in found}
        aggregate_type = by_name.get(headers.AGGREGATE_TYPE)
        type_name = None if aggregate_type is None else as_text(aggregate_type)
        position = by_name.get(headers.RELEASED)
        if position is not None and value is None and key is not None:
            if headers.AGGREGATE_TYPE in by_name:
                self.release(type_name, key, position)
            else:
                self.release_all(key, position)
            return
        aggregate_id, position = (
            by_name.get(headers.PARKED),
            by_name.get(headers.POSITION),
        )
        if aggregate_id is not None and position is not None:
            self._park(type_name, aggregate_id, position)


def parking_id(aggregate_id: bytes) -> bytes:
    """Return an aggregate's id, or its hash if it is long."""
    if len(aggregate_id) <= MAX_ID_BYTES:
        return aggregate_id
    return b"sha256:" + hashlib.sha256(aggregate_id).hexdigest().encode()


def parking_type(aggregate_type: str | None) -> str | None:
    """Return an aggregate's type, or its hash if it is long."""
    if aggregate_type is None:
        return None
    return parking_id(aggregate_type.encode()).decode()


def as_text(value: bytes) -> str:
    """Return a header's text; another program may have written invalid UTF-8."""
    return value.decode(errors="replace")


def _as_bytes(value: str | bytes | None) -> bytes | None:
    """Return a header's value as bytes."""
    return value.encode() if isinstance(value, str) else value
