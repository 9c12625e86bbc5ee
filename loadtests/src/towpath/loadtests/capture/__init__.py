"""
Methods of capturing one table's changes, run on the same load and compared.

Each method turns committed changes into records of one contract, in its own topic:

=====================  =================================================================
``trigger``            row triggers write a change log, and a worker polls it
``query``              a worker polls the rows by ``updated_at``
``dual_write``         the writer commits, and then produces
``relay``              the log relay reads the write-ahead log
=====================  =================================================================

``load`` plans the transactions, ``scenarios`` arranges the interleavings in which
methods fail, ``writers`` carries both out, and ``check`` compares a topic with the
table and with the committed changes, which the server itself decodes from its log. All
methods share the table, the load, the broker, the form of the records, and the check.

The contract of a record, which is the form of the relay's row changes:

- The key is ``{"id": ...}``: all records of a row are in one partition.
- The value has ``op`` (``c``, ``u`` or ``d``) and ``after``: the row, or null if it was
  deleted.
- The header ``position`` is the version: text that sorts in the method's own order.
"""

import json
from typing import Any, Final, NamedTuple

from towpath.schemas.headers import POSITION

CREATE: Final = "c"
UPDATE: Final = "u"
DELETE: Final = "d"


class RowImage(NamedTuple):
    """The columns that are compared; ``change`` is the number of the last change."""

    change: int
    note: str


class CapturedRecord(NamedTuple):
    """
    One record of the contract.

    Attributes:
        key: The primary key.
        operation: ``CREATE``, ``UPDATE`` or ``DELETE``.
        image: The row after the change; ``None`` if it was deleted.
        version: The header ``position``: text that sorts in the method's own order.
    """

    key: int
    operation: str
    image: RowImage | None
    version: str

    def key_bytes(self) -> bytes:
        """Return the key as Kafka stores it."""
        return json.dumps({"id": self.key}).encode()

    def value_bytes(self) -> bytes:
        """Return the value as Kafka stores it."""
        image = self.image
        after = None if image is None else {"id": self.key, **image._asdict()}
        return json.dumps({"op": self.operation, "after": after}).encode()

    def headers(self) -> list[tuple[str, str | bytes | None]]:
        """Return the headers as Kafka stores them."""
        return [(POSITION, self.version.encode())]


class TopicRecord(NamedTuple):
    """A record with its partition, its offset and the time of its append."""

    partition: int
    offset: int
    appended_ms: int
    record: CapturedRecord


def decoded(message: Any) -> TopicRecord | None:  # noqa: ANN401 - the client's object
    """Decode a Kafka message; ``None`` for a message without a value or key."""
    if message.value() is None or message.key() is None:
        return None
    value = json.loads(message.value())
    after = value["after"]
    image = None if after is None else RowImage(int(after["change"]), after["note"])
    headers = dict(message.headers() or ())
    return TopicRecord(
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        CapturedRecord(
            key=int(json.loads(message.key())["id"]),
            operation=value["op"],
            image=image,
            version=(headers.get(POSITION) or b"").decode(),
        ),
    )
