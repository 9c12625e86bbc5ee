"""``[relay.snapshot]``: how existing rows are read, and when it is done unasked."""

import enum

from pydantic import Field

from towpath.settings.section import (
    SIGNAL_TOPIC,
    OptionalTableText,
    Section,
    TableText,
)

_MEBIBYTE = 1024 * 1024


class FirstStart(enum.StrEnum):
    """
    Which rows are read unasked when the relay starts.

    ``never``: none. ``initial``: all tables, when the relay has never run before.
    ``initial_only``: the same, and then the relay ends. ``when_needed``: as
    ``initial``, and when a gap in the source's history calls for it. ``always``: all
    tables, at each start.
    """

    NEVER = "never"
    INITIAL = "initial"
    INITIAL_ONLY = "initial_only"
    WHEN_NEEDED = "when_needed"
    ALWAYS = "always"


class Watermarks(enum.StrEnum):
    """
    How a chunk's watermarks get into the log.

    ``messages``: as logical messages. ``rows``: as rows of the signal table, inserted
    and left; ``rows_deleted``: inserted and deleted again.
    """

    MESSAGES = "messages"
    ROWS = "rows"
    ROWS_DELETED = "rows_deleted"


class Select(Section):
    """``[[relay.snapshot.select]]``: what an initial snapshot reads for a table."""

    table: TableText
    select: str = Field(min_length=1)


class Snapshot(Section):
    """
    ``[relay.snapshot]``.

    ``readers`` is how many chunks are read at the same time, of one table or of
    several. A chunk begins with ``chunk_rows`` and grows or shrinks towards
    ``chunk_time_ms`` and ``chunk_bytes``. Reading yields while the stream is behind by
    ``max_lag_s``, or while more than ``max_active_sessions`` of others are at work in
    the source (0: however many). ``fill_new_tables``: a table that begins to match the
    source's ``tables`` while the relay runs is snapshotted by itself. ``signal_topic``
    and ``signal_table`` are further places where signals may be left: a Kafka topic,
    through which sinks ask for rows, and a bare table as Debezium has it.
    """

    mode: FirstStart = FirstStart.NEVER
    delay_s: float = Field(default=0.0, ge=0)
    select: tuple[Select, ...] = ()
    readers: int = Field(default=2, ge=1, le=32)
    chunk_rows: int = Field(default=10_000, ge=1)
    chunk_time_ms: int = Field(default=200, ge=1)
    chunk_bytes: int = Field(default=8 * _MEBIBYTE, ge=1024)
    max_lag_s: float = Field(default=10.0, gt=0)
    max_active_sessions: int = Field(default=0, ge=0)
    watermarks: Watermarks = Watermarks.MESSAGES
    fill_new_tables: bool = True
    signal_topic: str = Field(default="{prefix}-signal", pattern=SIGNAL_TOPIC)
    signal_table: OptionalTableText = ""
