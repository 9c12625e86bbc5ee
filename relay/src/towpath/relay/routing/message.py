"""
Logical messages to ``<prefix>.message``, in Debezium's shape.

``{"op": "m", "message": {"prefix", "content"}, "source", "ts_*", "transaction"}``,
keyed by ``{"prefix": ...}``, in the format of row changes. The content is written as
``[relay.rows] binaries`` says; as bytes it is base64 in JSON.

A transactional message stands at its ordinal in its transaction; ``source`` tells the
transaction's id and commit. Any other stands at its own LSN with ordinal ``-``, has
neither, and its time is when the relay took it: the log does not say when it was
written.

Our own messages (watermarks, heartbeats, verifier's marks, events without a table)
are never published. What the configuration leaves out is counted.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Literal

from towpath.relay.routing.codec import Place
from towpath.relay.routing.connect_schema import (
    MAYBE_INT64,
    MAYBE_STRING,
    SOURCE,
    STRING,
    TRANSACTION,
)
from towpath.relay.routing.documents import Documents
from towpath.relay.routing.forms.form import Schema
from towpath.relay.routing.record import FIXED_BYTES, Header, Record
from towpath.relay.wal.sequencer import Spoken
from towpath.schemas import envelope, headers, topics
from towpath.settings.relay import Relay
from towpath.settings.rows import Binaries, RecordFormat

# The name under which transactions count messages: as with a table, the topic's name
# without the prefix.
COLLECTION: Final = "message"
LEFT_OUT: Final = "the configuration leaves out a logical message's prefix"

OURS: Final = frozenset(
    {"towpath.watermark", "towpath.heartbeat", "towpath.verify", "towpath.table"}
)

KEY: Final = Schema(
    "struct",
    name="io.debezium.connector.postgresql.MessageKey",
    version=1,
    fields=(("prefix", MAYBE_STRING),),
)

_FORMS: Final[Mapping[Binaries, Callable[[bytes], bytes]]] = MappingProxyType(
    {
        Binaries.BYTES: base64.b64encode,
        Binaries.BASE64: base64.b64encode,
        Binaries.BASE64_URL_SAFE: base64.urlsafe_b64encode,
        Binaries.HEX: binascii.hexlify,
    }
)


def value_schema(content: Literal["bytes", "string"]) -> Schema:
    """Return the schema of values, by the kind of the content."""
    block = Schema(
        "struct",
        name="io.debezium.connector.postgresql.Message",
        version=1,
        fields=(
            ("prefix", MAYBE_STRING),
            ("content", Schema(content, is_optional=True)),
        ),
    )
    return Schema(
        "struct",
        name="io.debezium.connector.postgresql.MessageValue",
        version=1,
        fields=(
            ("op", STRING),
            ("ts_ms", MAYBE_INT64),
            ("ts_us", MAYBE_INT64),
            ("ts_ns", MAYBE_INT64),
            ("source", SOURCE),
            ("message", block),
            ("transaction", TRANSACTION),
        ),
    )


class MessageRecords:
    """Turns logical messages into records."""

    def __init__(
        self,
        prefix: str,
        database: str,
        relay: Relay,
        documents: Documents,
        on_skipped: Callable[[str], None],
        place: Callable[[str], Place] | None = None,
    ) -> None:
        """
        Take the rules.

        Args:
            prefix: Of the topics.
            database: The database's name, for ``source``.
            relay: ``[relay]``: which messages, and how bytes are written.
            documents: Makes the writers of keys and values.
            on_skipped: Told why a message gives no record.
            place: Counts an event into the open transaction; None without enrichment.
        """
        self._topic = topics.message_topic(prefix)
        self._include = tuple(map(re.compile, relay.messages.include))
        self._exclude = tuple(map(re.compile, relay.messages.exclude))
        self._ours = OURS | {relay.outbox.message_prefix}
        binaries = relay.rows.binaries
        is_raw = binaries is Binaries.BYTES
        self._form = None
        if not is_raw or documents.format is not RecordFormat.AVRO:
            self._form = _FORMS[binaries]
        value = value_schema("bytes" if is_raw else "string")
        self._write_key = documents.writer(KEY, f"{self._topic}-key")
        self._write_value = documents.writer(value, f"{self._topic}-value")
        self._on_skipped = on_skipped
        self._place = place
        self._names = {
            "version": envelope.SOURCE_VERSION,
            "connector": envelope.CONNECTOR,
            "name": prefix,
            "snapshot": envelope.STREAMED,
            "db": database,
            "schema": "",
            "table": "",
        }

    def record(self, spoken: Spoken, now_us: int) -> Record | None:
        """Return the message's record; None for one that is not published."""
        if spoken.prefix in self._ours:
            return None
        if not self._is_wanted(spoken.prefix):
            self._on_skipped(LEFT_OUT)
            return None
        transaction = spoken.transaction
        if transaction is None:
            position = b"%016x.-" % spoken.log_lsn
            timestamp_ms = now_us // 1000
        else:
            position = transaction.place + b"%010d" % spoken.ordinal
            timestamp_ms = transaction.committed_us // 1000
        value = self._write_value(self._envelope(spoken, now_us))
        key = self._write_key({"prefix": spoken.prefix})
        marks: list[Header] = [(headers.POSITION, position)]
        size = len(value) + len(key) + FIXED_BYTES
        return Record(self._topic, key, value, marks, position, timestamp_ms, size)

    def _is_wanted(self, prefix: str) -> bool:
        if self._include and not any(each.fullmatch(prefix) for each in self._include):
            return False
        return not any(each.fullmatch(prefix) for each in self._exclude)

    def _envelope(self, spoken: Spoken, now_us: int) -> dict[str, object]:
        transaction = spoken.transaction
        taken_us = now_us if transaction is None else transaction.committed_us
        commit_lsn = None if transaction is None else transaction.commit_lsn
        place = None
        if transaction is not None and self._place is not None:
            place = self._place(COLLECTION)
        return {
            "op": "m",
            "ts_ms": now_us // 1000,
            "ts_us": now_us,
            "ts_ns": now_us * 1000,
            "source": self._names
            | {
                "ts_ms": taken_us // 1000,
                "ts_us": taken_us,
                "ts_ns": taken_us * 1000,
                "sequence": _sequence(commit_lsn, spoken.lsn),
                "txId": transaction and transaction.xid,
                "lsn": spoken.lsn,
                "commit_lsn": commit_lsn,
                "origin": transaction and transaction.origin,
                "origin_lsn": transaction and transaction.origin_lsn,
                "xmin": None,
            },
            "message": {
                "prefix": spoken.prefix,
                "content": self._content(spoken.content),
            },
            "transaction": place
            and {
                "id": place.transaction_id,
                "total_order": place.total_order,
                "data_collection_order": place.collection_order,
            },
        }

    def _content(self, content: bytes) -> bytes | str:
        return content if self._form is None else self._form(content).decode()


def _sequence(commit_lsn: int | None, lsn: int) -> str:
    """Return both LSNs in the text that row changes carry too."""
    commit = "null" if commit_lsn is None else f'"{commit_lsn}"'
    return f'[{commit},"{lsn}"]'
