"""
What the relay itself asks for: rows that came to a new key with columns left out.

::

    asked -> batch open -> full, or the one before has ended, or a second old -> stored

Such a row is nowhere whole in the stream, so it is read by its key and sent as READ.
Keys are gathered across changes and transactions, since a snapshot for each would never
catch up. A batch bears the place of its first change in its name and stores that of its
last: batches are stored in the order of the stream, so after a crash a change at or
below the highest stored place has asked already, and is let pass.

A transaction is not confirmed before every batch that it has a key in is stored.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from towpath.relay.snapshot.effects import StoreKeys
from towpath.relay.snapshot.shape import Key
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.wal.messages import Relation
from towpath.schemas.position import Position, parse_position

SNAPSHOT_PREFIX: Final = "towpath-keys-"

# One stored row for so many keys: half as many doubles the rows that a mass update
# leaves; twice as many doubles what each chunk's progress writes again.
MAX_BATCH_KEYS: Final = 10_000
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024

# What a key takes beside its text while it waits.
_KEY_BYTES: Final = 150

# A batch waits for the one before it, so that few are stored, but no longer: its
# transactions cannot be confirmed meanwhile.
MAX_WAIT_S: Final = 1.0


@dataclass(slots=True)
class _Batch:
    """Keys that will be stored together; of each table, its oid and the keys."""

    snapshot_id: str
    until: Position
    tables: dict[str, tuple[int, dict[Key, None]]] = field(default_factory=dict)
    size: int = 0
    size_bytes: int = 0
    since_s: float | None = None

    def add(self, relation: Relation, key: Key) -> None:
        oid, keys = self.tables.get(relation.name, (0, {}))
        if oid != relation.oid:
            # Made anew under its name: there is nothing to read of the one before.
            keys = {}
            self.tables[relation.name] = (relation.oid, keys)
        if key not in keys:
            keys[key] = None
            self.size += 1
            self.size_bytes += _KEY_BYTES + sum(map(len, key))

    def stored(self) -> tuple[StoredTable, ...]:
        return tuple(
            StoredTable(
                snapshot_id=self.snapshot_id,
                collection=name,
                ordinal=ordinal,
                state="queued",
                table_oid=oid,
                pending_keys=tuple(keys),
                estimated_rows=len(keys),
                asked_keys=len(keys),
                asked_until=str(self.until),
            )
            for ordinal, (name, (oid, keys)) in enumerate(self.tables.items())
        )


class KeyRequests:
    """The keys that the relay asks for, on their way to being stored, and after."""

    def __init__(self, max_batch_keys: int = MAX_BATCH_KEYS, suffix: str = "") -> None:
        """
        Begin without a request.

        Args:
            max_batch_keys: How many keys are stored together.
            suffix: Keeps the ids of batches apart from another relay's.
        """
        self._max_batch_keys = max_batch_keys
        self._suffix = suffix
        self._until = Position(0, 0)
        self._batches: deque[_Batch] = deque()
        self._begun = 0
        self._ended = 0
        self._newest: dict[int, int] = {}
        self._failed: dict[int, int] = {}

    # Told by the loop, per change; hot while a mass update is streamed --------------

    def ask(self, relation: Relation, key: Key, position: Position) -> str | None:
        """
        Ask for a row.

        Returns:
            What the open transaction must be held for until it is stored; None if it
            is held for it already, or the request is stored.
        """
        if position <= self._until:
            return None
        is_new = position.log_lsn != self._until.log_lsn
        if not self._batches or self._is_full(self._batches[-1]):
            place = f"{position.log_lsn:016x}" if is_new else str(position)
            batch_id = f"{SNAPSHOT_PREFIX}{place}{self._suffix}"
            self._batches.append(_Batch(batch_id, position))
            self._begun += 1
            is_new = True
        batch = self._batches[-1]
        batch.add(relation, key)
        batch.until = self._until = position
        self._newest[relation.oid] = self._begun
        return batch.snapshot_id if is_new else None

    # Told by the driver --------------------------------------------------------------

    def resume(self, asked_until: str | None) -> None:
        """Let pass what is asked at or below this place: it is stored."""
        if asked_until is not None:
            self._until = max(self._until, parse_position(asked_until))

    def resume_batch(self, tables: tuple[StoredTable, ...]) -> None:
        """Take in a batch that is stored and has not ended."""
        self._begun += 1
        for table in tables:
            self._newest[table.table_oid] = self._begun

    def end_batch(self, tables: tuple[StoredTable, ...]) -> None:
        """Take in that the oldest batch has ended."""
        self._ended += 1
        for table in tables:
            if table.state != "completed":
                self._failed[table.table_oid] = self._ended

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be stored."""
        return not self._batches

    def take(self, now_s: float) -> StoreKeys | None:
        """Hand over the oldest batch, if it is time to store it."""
        if not self._batches:
            return None
        batch = self._batches[0]
        if batch.since_s is None:
            batch.since_s = now_s
        is_alone = self._begun - self._ended == len(self._batches)
        is_late = now_s - batch.since_s >= MAX_WAIT_S
        if not (self._is_full(batch) or is_alone or is_late):
            return None
        self._batches.popleft()
        return StoreKeys(batch.snapshot_id, batch.stored(), batch.size_bytes)

    def _is_full(self, batch: _Batch) -> bool:
        too_many = batch.size >= self._max_batch_keys
        return too_many or batch.size_bytes >= MAX_BATCH_BYTES

    # For scans of whole tables -------------------------------------------------------

    @property
    def ended(self) -> int:
        """The number of the last batch that has ended."""
        return self._ended

    def newest(self, table_oid: int) -> int:
        """Return the number of the last batch with keys of a table."""
        return self._newest.get(table_oid, 0)

    def has_ended(self, number: int) -> bool:
        """Tell whether a batch, and so all before it, has ended."""
        return self._ended >= number

    def has_failed(self, table_oid: int, after: int, until: int) -> bool:
        """Tell whether a batch, of those after and until, has failed for a table."""
        return after < self._failed.get(table_oid, 0) <= until
