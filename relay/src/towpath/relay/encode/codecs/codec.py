"""
Codecs of keys and values, as a table route uses them: one codec per shape of a table.

``json``, ``json_schema`` and ``avro`` fit it. Rows come as the stream brings them:
text, None for NULL, ``UNCHANGED`` for what was left out.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from towpath.relay.wal.messages import Row

# One column of many rows that a chunk read: nothing of them is left out.
Values = Sequence[bytes | None]


class EnvelopeFacts(NamedTuple):
    """
    The parts of an envelope beside the row; times in microseconds since 1970.

    Attributes:
        operation: Debezium's letter: b"c", b"u", b"d", b"r" or b"t".
        committed_us: When the transaction was committed, or the chunk was read.
        now_us: When the relay takes the change.
        snapshot: ``false``, or ``incremental`` for a chunk's row.
        xid: The transaction's id; None for a chunk's row.
        lsn: Where the row was written; None for a chunk's row.
        commit_lsn: The commit's LSN, or the chunk's low watermark.
        origin: The replication origin; None without.
        origin_lsn: The LSN of the commit at the origin; None without.
        transaction: The place in its transaction; None without enrichment.
    """

    operation: bytes
    committed_us: int
    now_us: int
    snapshot: bytes
    xid: int | None
    lsn: int | None
    commit_lsn: int
    origin: str | None
    origin_lsn: int | None
    transaction: "TransactionPlace | None"


class TransactionPlace(NamedTuple):
    """Where a row change stands in its transaction, counted from 1."""

    transaction_id: str
    total_order: int
    collection_order: int


class Codec(Protocol):
    """Writes the keys and values of one shape of one table."""

    def key(self, row: Row) -> bytes | None:
        """
        Return the key of a row; None for a table without one.

        Raises:
            MalformedMessageError: The row lacks a column of its key.
        """

    def key_header(self, row: Row) -> bytes | None:
        """
        Return the key of a row as headers have it, whatever the records' format.

        That is a struct as Kafka Connect's own header converter writes it: the plain
        JSON of its fields. Debezium's JDBC sink fails on anything else.
        """

    def value(
        self,
        before: Row | None,
        after: Row | None,
        facts: EnvelopeFacts,
        *,
        is_full: bool,
    ) -> bytes:
        """
        Return the envelope.

        ``is_full`` tells whether ``before`` is a whole row; otherwise only its key's
        columns mean anything. Unchanged values are left out, or stand as the
        placeholder if one is configured.
        """

    def keys(self, columns: Sequence[Values]) -> Sequence[bytes | None]:
        """
        Return the keys of rows that a chunk read, which come column by column.

        Raises:
            MalformedMessageError: A row lacks a column of its key.
        """

    def reads(self, columns: Sequence[Values], facts: EnvelopeFacts) -> Sequence[bytes]:
        """
        Return the envelopes of rows that a chunk read, which come column by column.

        Each is what ``value`` gives for the row as ``after``, byte by byte.
        """


class TableNames(NamedTuple):
    """Where a table's names come from: topic prefix, database, schema, table, topic."""

    prefix: str
    database: str
    schema: str
    table: str
    topic: str


# Registers a schema under a subject and returns its id. Blocks; new shapes only.
RegisterSchema = Callable[[str, str], int]
