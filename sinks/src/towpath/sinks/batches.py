"""What a batch's records are, for who reads them and for who takes them apart."""

from collections.abc import Iterator
from typing import Final, Protocol

import pyarrow as pa

from towpath.sinks.progress import Span

# The columns of a batch's records, as Kafka has them.
RECORDS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        (
            "headers",
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    ]
)


class Batches(Protocol):
    """
    Reads the records of one query's batches; which they are, the engine says.

    Call order: ``portions`` for each batch, then ``close``.
    """

    def portions(self, span: Span) -> Iterator[pa.Table]:
        """
        Read a batch, portion by portion; one that has no record gives none.

        Returns:
            Tables of ``RECORDS``, each partition in its order.

        Raises:
            UnavailableError: The broker does not answer; begin the batch again.
            RecordsGoneError: It does not have all of the batch any more.
        """

    def close(self) -> None:
        """Let go of connections; whoever still reads is told so by an error."""
