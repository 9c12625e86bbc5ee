"""
Transaction metadata: the place of each event in its transaction.

BEGIN, every event and END have the transaction's id, ``<xid>:<LSN of the commit record,
decimal>``, because Postgres reuses xids.

Each envelope of a row change counts as an event (a changed key gives two, ``d`` and
``c``), and so do a truncate per table, each outbox event and each published logical
message. Tombstones and skipped operations do not count. Dead letters of row changes
count, and so do dead letters of outbox events, because a replay publishes them.
Numbers begin at 1 and depend only on the log and the configuration: records that Kafka
already holds are counted, too, so that a transaction that is streamed again has the
same numbers.

BEGIN and END go to ``<prefix>.transaction``, keyed by the id. A transaction without an
event has neither, because otherwise the traffic of uncaptured tables would flood the
topic. Therefore, BEGIN is published with the first event. Both are streamed records
with their own positions: BEGIN has the ordinal 0; END has the number of messages in the
transaction as its ordinal, followed by ``.1``. Their ``ts_ms`` is the commit time. In
plain JSON, the key is the id's text; with schemas, it is Debezium's struct of one
field.
"""

from typing import Final

from towpath.relay.encode.codecs.codec import TransactionPlace
from towpath.relay.encode.codecs.connect_schema import INT64, MAYBE_INT64, STRING
from towpath.relay.encode.codecs.factory import Documents
from towpath.relay.encode.record import FIXED_BYTES, Record
from towpath.relay.encode.types.form import Schema
from towpath.relay.wal.transactions import Transaction
from towpath.schemas import headers, topics
from towpath.settings.rows import RecordFormat

_BEGIN: Final = "BEGIN"
_END: Final = "END"

KEY: Final = Schema(
    "struct",
    name="io.debezium.connector.common.TransactionMetadataKey",
    version=1,
    fields=(("id", STRING),),
)
_COUNT: Final = Schema(
    "struct",
    name="event.collection",
    version=1,
    is_optional=True,
    fields=(("data_collection", STRING), ("event_count", INT64)),
)
VALUE: Final = Schema(
    "struct",
    name="io.debezium.connector.common.TransactionMetadataValue",
    version=1,
    fields=(
        ("status", STRING),
        ("id", STRING),
        ("event_count", MAYBE_INT64),
        ("data_collections", Schema("array", is_optional=True, items=_COUNT)),
        ("ts_ms", INT64),
        ("commit_lsn", MAYBE_INT64),
    ),
)


class TransactionMetadata:
    """
    Counts the events of each transaction.

    Call order: ``begin`` at each begin; ``place`` for each event, before it is encoded;
    ``due`` before its records are published; ``end`` at the commit.
    """

    def __init__(self, prefix: str, documents: Documents) -> None:
        self._topic = topics.transaction_topic(prefix)
        self._is_plain = documents.format is RecordFormat.JSON
        self._write_key = documents.writer(KEY, f"{self._topic}-key")
        self._write_value = documents.writer(VALUE, f"{self._topic}-value")
        self._transaction: Transaction | None = None
        self._id = ""
        self._total = 0
        self._counts: dict[str, int] = {}
        self._has_begin = False

    def begin(self, transaction: Transaction) -> None:
        """Start counting the events of a transaction."""
        self._transaction = transaction
        self._id = transaction_id(transaction)
        self._total = 0
        self._counts = {}
        self._has_begin = False

    def place(self, collection: str) -> TransactionPlace:
        """
        Count an event, and return its place.

        ``collection`` is ``schema.table``, the prefix of messages that are events, or
        ``message`` for other messages.
        """
        self._total += 1
        count = self._counts[collection] = self._counts.get(collection, 0) + 1
        return TransactionPlace(self._id, self._total, count)

    def due(self) -> Record | None:
        """Return the BEGIN record, once, if the transaction has an event."""
        if self._has_begin or not self._total or self._transaction is None:
            return None
        self._has_begin = True
        position = self._transaction.place + b"%010d" % 0
        return self._record(self._transaction, _BEGIN, position)

    def end(self, transaction: Transaction, ordinal: int) -> Record | None:
        """
        Return the END record; None for a transaction without an event.

        ``ordinal`` is the number of messages in the transaction.
        """
        if not self._total:
            return None
        return self._record(transaction, _END, transaction.place + b"%010d.1" % ordinal)

    def _record(self, transaction: Transaction, status: str, position: bytes) -> Record:
        is_end = status == _END
        committed_ms = transaction.committed_us // 1000
        collections = [
            {"data_collection": name, "event_count": count}
            for name, count in self._counts.items()
        ]
        value = self._write_value(
            {
                "status": status,
                "id": self._id,
                "event_count": self._total if is_end else None,
                "data_collections": collections if is_end else None,
                "ts_ms": committed_ms,
                "commit_lsn": transaction.commit_lsn,
            }
        )
        key = self._id.encode() if self._is_plain else self._write_key({"id": self._id})
        own: list[tuple[str, str | bytes | None]] = [(headers.POSITION, position)]
        size = len(value) + len(key) + FIXED_BYTES
        return Record(self._topic, key, value, own, position, committed_ms, size)


def transaction_id(transaction: Transaction) -> str:
    """Return a transaction's id in records."""
    return f"{transaction.xid}:{transaction.commit_lsn}"
