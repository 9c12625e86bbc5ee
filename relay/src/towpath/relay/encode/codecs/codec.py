"""
The interface of codecs, which write keys and values of one table schema.

``JsonCodec``, ``JsonSchemaCodec`` and ``AvroCodec`` implement it. Rows have the values
of the stream: text, None for NULL, and ``UNCHANGED`` for unchanged TOASTed values.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from towpath.relay.wal.messages import Row

# The values of one column in many rows of a chunk; none of them is ``UNCHANGED``.
Values = Sequence[bytes | None]


class EnvelopeFacts(NamedTuple):
    """
    The parts of an envelope besides the row; times are in microseconds since 1970.

    Attributes:
        operation: Debezium's letter: b"c", b"u", b"d", b"r", b"t" or b"m".
        committed_us: When the transaction was committed, or a chunk's record was
            created.
        now_us: When the relay read the change.
        snapshot: ``false``, or ``incremental`` for a chunk's row.
        xid: The transaction's id; None for a chunk's row.
        lsn: The row's own LSN, or the commit's for a truncate; None for a chunk's row.
        commit_lsn: The commit's LSN, or the chunk's low watermark.
        origin: The replication origin; None if there is none.
        origin_lsn: The LSN of the commit at the origin; None without an origin.
        transaction: The change's place in its transaction; None without transaction
            metadata.
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
    """The place of an event among the events of its transaction, counted from 1."""

    transaction_id: str
    total_order: int
    collection_order: int


class Codec(Protocol):
    """Writes the keys and values of one schema of one table."""

    def key(self, row: Row) -> bytes | None:
        """
        Return the key of a row; None for a table without a key.

        Raises:
            MalformedMessageError: The row has no value for a key column.
        """

    def key_header(self, row: Row) -> bytes | None:
        """
        Return the key of a row for headers, in one format for all codecs.

        The key is a struct as Kafka Connect's header converter writes it: the plain
        JSON of its fields. Debezium's JDBC sink fails on other formats.
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

        Unless ``is_full``, ``before`` has values only in the key's columns. Unchanged
        values are missing (null in Avro), or replaced by the configured placeholder.
        """

    def keys(self, columns: Sequence[Values]) -> Sequence[bytes | None]:
        """
        Return the keys of a chunk's rows, which are given column by column.

        Raises:
            MalformedMessageError: A row has no value for a key column.
        """

    def reads(self, columns: Sequence[Values], facts: EnvelopeFacts) -> Sequence[bytes]:
        """
        Return the envelopes of a chunk's rows, which are given column by column.

        Each equals what ``value`` returns with the row as ``after``.
        """


class TableNames(NamedTuple):
    """The names in a table's records."""

    prefix: str
    database: str
    schema: str
    table: str
    topic: str


# Registers a schema under a subject and returns its id; the call blocks.
RegisterSchema = Callable[[str, str], int]
