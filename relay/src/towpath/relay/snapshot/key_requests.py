"""
Key requests: rows that moved to a new key, with columns left out, are read by that key.

::

    requested -> batch open -> full, or alone, or a second old -> stored

The stream never carries such a row in full, so a snapshot reads it and sends it as
READ. Keys are batched across changes and transactions, since one snapshot per key would
never catch up. A batch is named after the position of its first change and stores the
position of its last. Batches are stored in the order of the stream: after a crash,
changes at or below the highest stored position are not requested again.

A transaction is not confirmed before every batch that holds one of its keys is stored.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from towpath.relay.snapshot.protocol import StoreKeys
from towpath.relay.snapshot.shape import Key
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.wal.messages import Relation
from towpath.schemas.position import Position, parse_position

SNAPSHOT_PREFIX: Final = "towpath-keys-"

# The number of keys in one stored row: half this number doubles the rows that a mass
# update stores; twice this number doubles the text that is rewritten with each chunk's
# progress.
MAX_BATCH_KEYS: Final = 10_000
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024

# The memory that a key takes in addition to its text.
_KEY_BYTES: Final = 150

# A batch waits for the previous one to end, so that few batches are stored, but no
# longer than this: its transactions cannot be confirmed in the meantime.
MAX_WAIT_S: Final = 1.0


@dataclass(slots=True)
class _Batch:
    """Keys that are stored together: the oid and the keys of each table."""

    snapshot_id: str
    until: Position
    tables: dict[str, tuple[int, dict[Key, None]]] = field(default_factory=dict)
    size: int = 0
    size_bytes: int = 0
    since_s: float | None = None

    def add(self, relation: Relation, key: Key) -> None:
        oid, keys = self.tables.get(relation.name, (0, {}))
        if oid != relation.oid:
            # The name now belongs to another table; the previous one has no rows left.
            keys = {}
            self.tables[relation.name] = (relation.oid, keys)
        if key not in keys:
            keys[key] = None
            self.size += 1
            self.size_bytes += _KEY_BYTES + sum(map(len, key))

    def to_stored_tables(self) -> tuple[StoredTable, ...]:
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
    """The key requests of a source, until their batches have ended."""

    def __init__(self, max_batch_keys: int = MAX_BATCH_KEYS, suffix: str = "") -> None:
        """
        Begin with no requests.

        Args:
            max_batch_keys: The number of keys that are stored together.
            suffix: Distinguishes the ids of batches from another relay's.
        """
        self._max_batch_keys = max_batch_keys
        self._suffix = suffix
        self._until = Position(0, 0)
        self._batches: deque[_Batch] = deque()
        self._begun = 0
        self._ended = 0
        self._newest: dict[int, int] = {}
        # Per table oid, the log LSN of the newest change whose key request has failed.
        self._failed: dict[int, int] = {}

    # From the loop, per change; hot while a mass update is streamed -----------------

    def add(self, relation: Relation, key: Key, position: Position) -> str | None:
        """
        Request the row of a key.

        Returns:
            The batch that must be stored before the open transaction is confirmed; None
            if the transaction already waits for it, or the request is already stored.
        """
        if position <= self._until:
            return None
        is_new = position.log_lsn != self._until.log_lsn
        if not self._batches or self._is_full(self._batches[-1]):
            start = f"{position.log_lsn:016x}" if is_new else str(position)
            batch_id = f"{SNAPSHOT_PREFIX}{start}{self._suffix}"
            self._batches.append(_Batch(batch_id, position))
            self._begun += 1
            is_new = True
        batch = self._batches[-1]
        batch.add(relation, key)
        batch.until = self._until = position
        self._newest[relation.oid] = self._begun
        return batch.snapshot_id if is_new else None

    # From the driver -----------------------------------------------------------------

    def resume(
        self, asked_until: str | None, failed: Iterable[tuple[int, str]] = ()
    ) -> None:
        """
        Continue from the stored requests.

        Args:
            asked_until: Changes at or below this position lead to no new requests:
                theirs are stored already.
            failed: Per table oid, the position of the newest failed request.
        """
        if asked_until is not None:
            self._until = max(self._until, parse_position(asked_until))
        for table_oid, position in failed:
            self._add_failure(table_oid, position)

    def resume_batch(self, tables: tuple[StoredTable, ...]) -> None:
        """Add a batch that is stored and has not ended."""
        self._begun += 1
        for table in tables:
            self._newest[table.table_oid] = self._begun

    def end_batch(self, tables: tuple[StoredTable, ...]) -> None:
        """Record that the oldest batch has ended."""
        self._ended += 1
        for table in tables:
            if table.state != "completed" and table.asked_until is not None:
                self._add_failure(table.table_oid, table.asked_until)

    def _add_failure(self, table_oid: int, position: str) -> None:
        log_lsn = parse_position(position).log_lsn
        self._failed[table_oid] = max(log_lsn, self._failed.get(table_oid, 0))

    @property
    def is_empty(self) -> bool:
        """Whether no batch waits to be stored."""
        return not self._batches

    def next_batch(self, now_s: float) -> StoreKeys | None:
        """Remove and return the oldest batch, if it is time to store it."""
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
        return StoreKeys(batch.snapshot_id, batch.to_stored_tables(), batch.size_bytes)

    def _is_full(self, batch: _Batch) -> bool:
        too_many = batch.size >= self._max_batch_keys
        return too_many or batch.size_bytes >= MAX_BATCH_BYTES

    # For scans of whole tables -------------------------------------------------------

    def newest(self, table_oid: int) -> int:
        """Return the number of the newest batch with keys of a table; 0 if none."""
        return self._newest.get(table_oid, 0)

    def has_ended(self, number: int) -> bool:
        """Return whether a batch, and so all before it, has ended."""
        return self._ended >= number

    def has_failed(self, table: StoredTable) -> bool:
        """
        Return whether a key request failed since a table's scan began.

        The scan may have passed the requested key, and the stream does not carry its
        row in full. A scan of listed keys does not depend on other keys.
        """
        if table.asked_keys is not None or table.floor is None:
            return False
        return self._failed.get(table.table_oid, -1) >= table.floor
