"""
The relay's state: the content of the compacted topic ``<prefix>.relay-state``.

==================  ================================================================
``lineage``         the newest lineages; the last of them is current
``confirmed``       the confirmed LSN, stored before it is confirmed to Postgres
``marks:<topic>``   the marks of each partition
``settings``        the settings that determine ordinals, routes, keys and partitions
``delivery``        whether records are written in Kafka transactions
``skip:<lsn>``      a transaction that an operator skips
==================  ================================================================

The state is in Kafka, not in the database, because a database may be restored. Values
are JSON; an empty value deletes the key. This module does no I/O: ``kafka.state`` reads
and writes the topic.

Settings are stored because, after a crash, the relay streams changes whose records
Kafka may already hold. These records must get the same ordinals and partitions as
before, or those in Kafka would not be recognized: the relay uses the stored settings
until the confirmed LSN has passed every mark, and then those of the file.

The slot is always the file's: its LSN decides whether the lineage continues. Masks (and
their salts, which are secret) only change values and are not stored; nor are the
aggregate views, which only produce READ events.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import orjson

from towpath.relay.encode.record import FIRST_PARTITION, FIXED_BYTES, Record
from towpath.relay.errors import StateLostError
from towpath.relay.recovery.marks import (
    NO_FORMER_COUNTS,
    Confirmed,
    FormerCounts,
    TopicMarks,
    parse_confirmed,
    parse_former,
    parse_marks,
)
from towpath.schemas import topics
from towpath.settings import Relay, Settings, Source
from towpath.settings.section import STORED

LINEAGE_KEY: Final = "lineage"
CONFIRMED_KEY: Final = "confirmed"
SETTINGS_KEY: Final = "settings"
MARKS_KEY: Final = "marks:"
SKIP_KEY: Final = "skip:"
DELIVERY_KEY: Final = "delivery"

StateDocument = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class State:
    """
    The state topic's content.

    Attributes:
        lineage: The document under ``lineage``; None if none was ever written.
        confirmed: The last checkpoint; None before the first.
        marks: The marks, by topic.
        former: The former partition counts, by topic.
        settings: The document under ``settings``; None if none was ever written.
        delivery: The delivery mode of the last process; None before the first.
        skips: The log LSNs of transactions to skip.
        skipped_log_lsns: The log LSNs of skipped transactions. After a restart, those
            that are not confirmed yet are streamed and skipped again.
    """

    lineage: StateDocument | None = None
    confirmed: Confirmed | None = None
    marks: Mapping[str, TopicMarks] = field(
        default_factory=lambda: MappingProxyType(dict[str, TopicMarks]())
    )
    former: FormerCounts = field(default_factory=lambda: NO_FORMER_COUNTS)
    settings: StateDocument | None = None
    delivery: str | None = None
    skips: frozenset[int] = frozenset()
    skipped_log_lsns: frozenset[int] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether neither a lineage nor marks were ever written."""
        return self.lineage is None and not self.marks


def parse_state(newest: Mapping[str, bytes]) -> State:
    """
    Return the state parsed from the newest value of each key.

    Raises:
        StateLostError: A value cannot be read.
    """
    try:
        return _parse({key: orjson.loads(text) for key, text in newest.items()})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"the state topic holds an invalid value: {error}"
        raise StateLostError(reason) from error


def _parse(documents: Mapping[str, Any]) -> State:
    confirmed = documents.get(CONFIRMED_KEY)
    return State(
        lineage=documents.get(LINEAGE_KEY),
        confirmed=None if confirmed is None else parse_confirmed(confirmed),
        marks={
            key.removeprefix(MARKS_KEY): parse_marks(document)
            for key, document in documents.items()
            if key.startswith(MARKS_KEY)
        },
        former={
            key.removeprefix(MARKS_KEY): former
            for key, document in documents.items()
            if key.startswith(MARKS_KEY) and (former := parse_former(document))
        },
        settings=documents.get(SETTINGS_KEY),
        delivery=documents.get(DELIVERY_KEY, {}).get("mode"),
        skips=_skips(documents, is_done=False),
        skipped_log_lsns=_skips(documents, is_done=True),
    )


def _skips(documents: Mapping[str, Any], *, is_done: bool) -> frozenset[int]:
    return frozenset(
        int(document["log_lsn"])
        for key, document in documents.items()
        if key.startswith(SKIP_KEY) and bool(document.get("done")) == is_done
    )


class StateRecords:
    """Makes the records that the relay's loop writes to the state topic."""

    def __init__(self, prefix: str) -> None:
        self.topic = topics.state_topic(prefix)

    def marks(self, topic: str, document: StateDocument, now_ms: int) -> Record:
        """Return the record of a topic's marks."""
        return self._record(f"{MARKS_KEY}{topic}", document, now_ms)

    def confirmed(self, confirmed: Confirmed, now_ms: int) -> Record:
        """Return the record of a checkpoint."""
        return self._record(CONFIRMED_KEY, confirmed._asdict(), now_ms)

    def skipped(self, lsn_text: str, log_lsn: int, now_ms: int) -> Record:
        """Return the record of a skipped transaction."""
        document = {"done": True, "log_lsn": log_lsn}
        return self._record(f"{SKIP_KEY}{lsn_text}", document, now_ms)

    def _record(self, key: str, document: StateDocument, now_ms: int) -> Record:
        name, value = key.encode(), orjson.dumps(document)
        size = len(name) + len(value) + FIXED_BYTES
        return Record(self.topic, name, value, [], b"", now_ms, size, FIRST_PARTITION)


_SOURCE: Final = frozenset({"publication", "outbox_publication", "tables"})
_RELAY: Final = frozenset({"preset", "outbox", "rows", "transactions", "messages"})
_LEFT_OUT: Final = MappingProxyType({"rows": "mask", "outbox": "view"})


def publishing_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that determine ordinals, routes, keys and partitions."""
    source = settings.database.model_dump(mode="json", include=set(_SOURCE))
    relay = settings.relay.model_dump(mode="json", include=set(_RELAY))
    for section, key in _LEFT_OUT.items():
        relay[section].pop(key, None)
    return {"source": source, "relay": relay}


def with_stored(settings: Settings, stored: Mapping[str, Any]) -> Settings:
    """
    Return the settings, with stored values in place of the file's.

    Raises:
        StateLostError: The stored settings are invalid.
    """
    try:
        source = settings.database.model_dump() | dict(stored["source"])
        relay = settings.relay.model_dump()
        for name, value in stored["relay"].items():
            relay[name] = relay[name] | value if isinstance(value, dict) else value
        return settings.model_copy(
            update={
                "source": (Source.model_validate(source, context=STORED),),
                "relay": Relay.model_validate(relay, context=STORED),
            }
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"the stored settings cannot be read: {error!r}"
        raise StateLostError(reason) from error


def changed_settings(settings: Settings, stored: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the file's settings that differ from the stored ones."""
    now = publishing_settings(settings)
    return tuple(
        f"{section}.{name}"
        for section, names in now.items()
        for name, value in names.items()
        if stored.get(section, {}).get(name) != value
    )
