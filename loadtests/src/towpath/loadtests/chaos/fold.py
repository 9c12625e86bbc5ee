"""
The fold of one table's topic, with a check of each record.

For each key, the newest position wins, and a change with omitted columns is merged into
the row. Four kinds of record are wrong:

==============  =====================================================================
twice           a streamed record at or below an earlier one of its partition
older           a READ below an earlier event of its key
stale           a READ whose row is older, by its counter ``v``, than that event
resurrected     a READ that shows a deleted row again
==============  =====================================================================

Concurrent snapshots may deliver a key in either order, so a READ is compared with
events, never with another READ.

A reader of two topics (the shared one and a sink's own) gets their records in no
defined relative order. Its fold checks nothing, and fills the omitted columns of a
newer change from an older READ.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Row = Mapping[str, Any]
Headers = Iterable[tuple[str, bytes | None]]

POSITION: Final = "position"
SNAPSHOT: Final = "snapshot"
UNCHANGED: Final = "unchanged"
SWEEP: Final = "sweep"
DROPPED: Final = "dropped"

# Length of a position without the suffix that numbers further records of a change.
_PLAIN: Final = 27
_SHOWN: Final = 20
_ALL: Final = 0
_NEVER: Final = -1
_ABSENT: Final = object()


@dataclass(slots=True)
class _Known:
    """
    The state of a key.

    Attributes:
        position: The position of its newest record.
        row: Its row, if it has one.
        missing: The columns that its row lacks.
        event: The position of its newest event.
        is_gone: Whether that event deleted its row.
        event_version: The counter in its newest event.
        version: The highest counter in any of its records.
    """

    position: bytes
    row: Row | None
    missing: frozenset[str] = frozenset()
    event: bytes = b""
    is_gone: bool = False
    event_version: int = _NEVER
    version: int = _NEVER


@dataclass(slots=True)
class _Partition:
    keys: dict[bytes, _Known] = field(default_factory=dict)
    newest: bytes = b""
    floor: bytes = b""


class Fold:
    """The fold of one table's records."""

    def __init__(self, name: str, *, is_ordered: bool = True) -> None:
        """
        Create an empty fold.

        Args:
            name: The table's name, for findings.
            is_ordered: Whether all records come from one topic.
        """
        self.name = name
        self.counts: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.findings: list[str] = []
        self._is_ordered = is_ordered
        self._partitions: dict[int, _Partition] = {}

    @property
    def reads(self) -> int:
        """The number of READ rows."""
        return self.counts["r"]

    def rows(self) -> dict[bytes, Row]:
        """Return the rows by the bytes of their keys."""
        return {
            key: known.row
            for partition in self._partitions.values()
            for key, known in partition.keys.items()
            if known.row is not None
        }

    def incomplete(self) -> list[bytes]:
        """Return the keys whose rows still lack columns."""
        return [
            key
            for partition in self._partitions.values()
            for key, known in partition.keys.items()
            if known.missing
        ]

    def take(
        self, partition: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        """Apply one record; pass each partition's records in offset order."""
        named = dict(headers)
        position = named.get(POSITION)
        if position is None:
            return
        at = partition if self._is_ordered else _ALL
        part = self._partitions.get(at)
        if part is None:
            part = self._partitions[at] = _Partition()
        if SNAPSHOT not in named:
            self._check_order(part, key, position)
        if value is None:
            return
        envelope = json.loads(value)
        self.counts[envelope["op"]] += 1
        if key is None:
            # A table was recreated and a sweep follows: only readers that do not handle
            # sweeps empty their copy here.
            if DROPPED not in named or SWEEP in named:
                self._apply_to_all(part, position, named.get(SWEEP), envelope["op"])
        elif SNAPSHOT in named:
            self._read(part, key, position, envelope["after"])
        else:
            left_out = named.get(UNCHANGED)
            missing = frozenset(json.loads(left_out) if left_out else ())
            self._change(part, key, position[:_PLAIN], envelope["after"], missing)

    def _apply_to_all(
        self, part: _Partition, position: bytes, floor: bytes | None, operation: str
    ) -> None:
        """Apply a record that concerns all keys."""
        if operation == "t":
            self._truncate(part, position)
        elif floor is not None:
            self._sweep(part, position, floor)

    def _check_order(
        self, part: _Partition, key: bytes | None, position: bytes
    ) -> None:
        if position <= part.newest and self._is_ordered:
            self._add_finding("twice", key, f"{position!r} after {part.newest!r}")
        part.newest = max(part.newest, position)

    def _truncate(self, part: _Partition, position: bytes) -> None:
        part.floor = max(part.floor, position)
        for known in part.keys.values():
            if known.position < position:
                known.position = known.event = position
                known.row, known.missing, known.is_gone = None, frozenset(), True

    def _sweep(self, part: _Partition, position: bytes, floor: bytes) -> None:
        """Delete the rows below the floor: the table no longer has them."""
        for known in part.keys.values():
            if known.position < floor:
                known.position, known.row = position, None
                known.missing = frozenset()

    def _change(
        self,
        part: _Partition,
        key: bytes,
        position: bytes,
        after: Row | None,
        missing: frozenset[str],
    ) -> None:
        known = part.keys.setdefault(key, _Known(b"", None))
        if position < max(part.floor, known.position):
            return
        known.position = known.event = position
        known.is_gone = after is None
        if after is None:
            known.row, known.missing = None, frozenset()
            return
        known.event_version = int(after["v"])
        known.version = max(known.version, known.event_version)
        if missing:
            old = known.row or {}
            kept = {name: old[name] for name in missing if name in old}
            after = {**kept, **after}
            missing -= kept.keys()
        known.row, known.missing = after, missing

    def _read(
        self, part: _Partition, key: bytes, position: bytes, after: Row | None
    ) -> None:
        known = part.keys.setdefault(key, _Known(b"", None))
        version = _NEVER if after is None else int(after["v"])
        if self._is_ordered:
            self._compare(part, known, key, position, version)
        if position >= max(part.floor, known.position):
            known.position, known.row, known.missing = position, after, frozenset()
        elif known.missing and after is not None:
            filled = {n: after[n] for n in known.missing if n in after}
            known.row = {**filled, **(known.row or {})}
            known.missing = known.missing - filled.keys()
        known.version = max(known.version, version)

    def _compare(
        self, part: _Partition, known: _Known, key: bytes, position: bytes, version: int
    ) -> None:
        newest = max(known.event, part.floor)
        if position < newest:
            self._add_finding("older", key, f"{position!r} after {newest!r}")
        elif version == _NEVER:
            return
        elif known.is_gone and version <= known.version:
            self._add_finding("resurrected", key, f"v {version} of {known.version}")
        elif version < known.event_version and not known.is_gone:
            self._add_finding("stale", key, f"v {version} after {known.event_version}")

    def _add_finding(self, kind: str, key: bytes | None, detail: str) -> None:
        self.wrong[kind] += 1
        if len(self.findings) < _SHOWN:
            shown = (key or b"").decode(errors="replace")
            self.findings.append(f"{self.name}: {kind}: {shown}: {detail}")


def differences(
    folded: Mapping[bytes, Row], table: Mapping[tuple[str | None, ...], Row]
) -> list[str]:
    """
    Compare the rows of a fold with those of a table, key by key, column by column.

    Args:
        folded: Rows by the bytes of their keys, as in the topic.
        table: Rows by their keys, both in Postgres's text form.
    """
    ours = {_key(key): _texts(row) for key, row in folded.items()}
    found = [f"{key}: lost" for key in table.keys() - ours.keys()]
    found += [f"{key}: not in the table" for key in ours.keys() - table.keys()]
    for key in table.keys() & ours.keys():
        theirs = table[key]
        if ours[key] != theirs:
            names = sorted(
                name
                for name in theirs.keys() | ours[key].keys()
                if ours[key].get(name, _ABSENT) != theirs.get(name, _ABSENT)
            )
            first = names[0]
            shown = f"{_shown(ours[key], first)} is not {_shown(theirs, first)}"
            found.append(f"{key}: {', '.join(names)}: {shown}")
    return found


def _shown(row: Row, name: str) -> str:
    return repr(row[name])[:60] if name in row else "(no such column)"


def _key(key: bytes) -> tuple[str | None, ...]:
    return tuple(_text(part) for part in json.loads(key).values())


def _texts(row: Row) -> dict[str, str | None]:
    return {name: _text(value) for name, value in row.items()}


def _text(value: object) -> str | None:
    """Return a JSON value in Postgres's text form, for the types used here."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)
