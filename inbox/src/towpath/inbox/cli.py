"""``towpath inbox``: create an inbox, show consumers, prune ids, replay events."""

import contextlib
import dataclasses
import json as json_text
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from confluent_kafka import KafkaError, KafkaException
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from towpath.cli.options import JsonOption
from towpath.inbox.inbox import Inbox, ParkedEvent
from towpath.inbox.status import (
    REFUSED,
    ConsumerStatus,
    InboxTables,
    OffsetReader,
    client_settings,
    consumer_status,
    reading_offsets,
)
from towpath.inbox.tables import SCHEMA, create_statements
from towpath.schemas.failure import UnavailableError, UsageError, first_line

if TYPE_CHECKING:
    import psycopg

_LISTED: Final = 1_000

app = App(name="inbox", help="Create an inbox; manage its consumers.")


def _refuse_empty(_type: object, name: str | None) -> None:
    """
    Refuse an empty name, which is the value of an unset shell variable.

    Kafka's client aborts the process if the name of a group is empty.
    """
    if name == "":
        message = "it is empty"
        raise ValueError(message)


DsnOption = Annotated[
    str,
    Parameter(
        name="--dsn", env_var="TOWPATH_INBOX_DSN", help="The DSN of the database."
    ),
]
ConsumerOption = Annotated[
    str,
    Parameter(name="--consumer", help="The consumer's name.", validator=_refuse_empty),
]
KafkaOption = Annotated[
    str,
    Parameter(
        name="--kafka", env_var="TOWPATH_INBOX_KAFKA", help="Kafka's bootstrap servers."
    ),
]
KafkaFileOption = Annotated[
    Path | None,
    Parameter(
        name="--kafka-file",
        env_var="TOWPATH_INBOX_KAFKA_FILE",
        help="Settings of Kafka's client, such as a login: one name=value per line.",
    ),
]
SchemaOption = Annotated[
    str,
    Parameter(
        name="--schema",
        help="The schema of the inbox's tables.",
        validator=_refuse_empty,
    ),
]


@app.command
def create(
    *, dsn: DsnOption, schema: SchemaOption = SCHEMA, dry_run: bool = False
) -> int:
    """
    Create the tables of the inbox, or upgrade them; safe to repeat.

    Args:
        dsn: The database.
        schema: The schema of the tables.
        dry_run: Print the statements instead of running them.
    """
    statements = create_statements(schema)
    if dry_run:
        print(";\n".join(statements) + ";")
        return 0
    with _connect(dsn) as connection:
        for statement in statements:
            connection.execute(statement)
    return 0


@app.command
def status(
    *,
    dsn: DsnOption,
    kafka: KafkaOption,
    kafka_file: KafkaFileOption = None,
    consumer: ConsumerOption | None = None,
    schema: SchemaOption = SCHEMA,
    json: JsonOption = False,
) -> int:
    """
    Show offsets, lag and parked events of each consumer; exit 1 if events are parked.

    Args:
        dsn: The database.
        kafka: The bootstrap servers.
        kafka_file: More settings of the client.
        consumer: The consumer; by default, all with stored ids or parked events.
        schema: The schema of the tables.
        json: Print one JSON document.
    """
    found = []
    settings = client_settings(kafka, kafka_file)
    with _connect(dsn, schema) as connection:
        tables = InboxTables(connection, schema)
        names = tables.consumers() if consumer is None else [consumer]
        for name in names:
            with _offsets(name, settings) as offsets:
                found.append(consumer_status(name, tables, offsets))
    if json:
        documents = [dataclasses.asdict(one) | {"lag": one.lag} for one in found]
        print(json_text.dumps(documents, indent=1, default=str))
    else:
        _print_status(found)
    return int(any(one.parked_events for one in found))


@app.command
def prune(
    *,
    dsn: DsnOption,
    kafka: KafkaOption,
    kafka_file: KafkaFileOption = None,
    consumer: ConsumerOption,
    schema: SchemaOption = SCHEMA,
) -> int:
    """
    Delete the ids of events that their topics no longer contain; safe at any time.

    No reset of offsets can deliver these events again. The ids of parked events
    are kept, and so are those of a topic that does not exist.

    Args:
        dsn: The database.
        kafka: The bootstrap servers.
        kafka_file: More settings of the client.
        consumer: The consumer.
        schema: The schema of the tables.
    """
    settings = client_settings(kafka, kafka_file)
    with _connect(dsn, schema) as connection:
        topics = InboxTables(connection, schema).topics(consumer)
        with _offsets(consumer, settings) as offsets:
            below = offsets.first_offsets(topics.__contains__)
        count = Inbox(consumer, schema=schema).prune(connection, below)
    print(f"ids pruned: {count}")
    return 0


@app.command
def parked(
    *,
    dsn: DsnOption,
    consumer: ConsumerOption,
    schema: SchemaOption = SCHEMA,
    json: JsonOption = False,
) -> int:
    """
    List events in the order in which they were parked; exit 1 if any are parked.

    The list ends after 1,000; a note on standard error says if there are more.

    Args:
        dsn: The database.
        consumer: The consumer.
        schema: The schema of the tables.
        json: Print one JSON document.
    """
    with _connect(dsn, schema) as connection:
        found = Inbox(consumer, schema=schema).parked(connection, limit=_LISTED + 1)
    if len(found) > _LISTED:
        found = found[:_LISTED]
        note = f"only the first {_LISTED:,} are listed; towpath inbox status counts all"
        print(note, file=sys.stderr)
    if json:
        print(json_text.dumps([_document(one) for one in found], indent=1))
    elif found:
        _print(found)
    else:
        print("no event is parked")
    return int(bool(found))


@app.command
def replay(
    event: str | None = None,
    *,
    dsn: DsnOption,
    consumer: ConsumerOption,
    schema: SchemaOption = SCHEMA,
) -> int:
    """
    Request a replay of all parked events of one event's key, or of all keys.

    A running consumer replays them within seconds, in order. An event that fails again
    stays parked with its new reason, and its followers stay parked behind it.

    Args:
        event: The event's id; by default, all parked events.
        dsn: The database.
        consumer: The consumer.
        schema: The schema of the tables.
    """
    with _connect(dsn, schema) as connection:
        count = Inbox(consumer, schema=schema).request_replay(connection, event)
    if event is not None and not count:
        message = f"{consumer} has no parked event {event}"
        raise UsageError(message)
    print(f"parked events to be replayed: {count}")
    return 0


@app.command
def discard(
    event: str,
    *,
    dsn: DsnOption,
    consumer: ConsumerOption,
    schema: SchemaOption = SCHEMA,
) -> int:
    """
    Drop one parked event for good; its followers stay parked until a replay.

    Args:
        event: The event's id.
        dsn: The database.
        consumer: The consumer.
        schema: The schema of the tables.
    """
    with _connect(dsn, schema) as connection:
        was_parked = Inbox(consumer, schema=schema).discard(connection, event)
    if not was_parked:
        message = f"{consumer} has no parked event {event}"
        raise UsageError(message)
    print(f"discarded {event}")
    return 0


@contextlib.contextmanager
def _connect(
    dsn: str, schema: str = SCHEMA
) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    """Connect to the database, and commit at the end of the block."""
    opened = _open(dsn)
    # ``_open`` has already refused an installation without psycopg.
    import psycopg  # noqa: PLC0415 - the library does without it

    try:
        with opened as connection:
            yield connection
    except psycopg.OperationalError as error:
        # For example a lost connection, a deadlock, a timeout, or a full disk.
        message = f"the database did not complete the command: {first_line(error)}"
        raise UnavailableError(message) from error
    except psycopg.errors.UndefinedTable as error:
        command = f'towpath inbox create --schema "{schema}"'
        message = f"there is no inbox in the schema {schema}; create it: {command}"
        raise UsageError(message) from error
    except psycopg.errors.InsufficientPrivilege as error:
        message = f"{first_line(error)}; docs/rights.md lists the grants"
        raise UsageError(message) from error
    except psycopg.errors.ReadOnlySqlTransaction as error:
        message = f"{first_line(error)}: name the primary server with --dsn"
        raise UsageError(message) from error


def _open(dsn: str) -> "psycopg.Connection[tuple[object, ...]]":
    """Return a connection to the database."""
    try:
        import psycopg  # noqa: PLC0415 - the library does without it
    except ImportError as error:
        message = "the command needs psycopg: pip install 'towpath-inbox[cli]'"
        raise UsageError(message) from error
    try:
        psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # The error's text is left out: it may repeat a password.
        message = (
            "--dsn must be postgresql://user@host:port/database, or pairs such as "
            "host=... dbname=..."
        )
        raise UsageError(message) from None
    try:
        return psycopg.connect(dsn)
    except psycopg.OperationalError as error:
        message = f"the database cannot be reached: {first_line(error)}"
        raise UnavailableError(message) from error
    except psycopg.ProgrammingError as error:
        # The driver itself refuses a value, such as that of connect_timeout.
        message = f"--dsn: {first_line(error)}"
        raise UsageError(message) from error


@contextlib.contextmanager
def _offsets(group: str, settings: dict[str, str]) -> Iterator[OffsetReader]:
    """Read offsets as a member of the group would, without joining it."""
    try:
        with reading_offsets(settings | {"group.id": group}) as offsets:
            yield offsets
    except KafkaException as error:
        cause = error.args[0]
        if cause.code() == KafkaError._INVALID_ARG:  # noqa: SLF001 - the client's name
            raise UsageError(cause.str()) from error
        if cause.code() in REFUSED:
            message = (
                f"Kafka refused the request: {cause.str()}; "
                "docs/rights.md lists the grants"
            )
            raise UsageError(message) from error
        message = f"Kafka cannot be reached: {cause.str()}"
        raise UnavailableError(message) from error


def _print_status(found: list[ConsumerStatus]) -> None:
    consumers = Table("consumer", "lag", "ids", "parked", "keys", "oldest parked at")
    partitions = Table("consumer", "partition", "committed", "end", "lag", "ids")
    for one in found:
        oldest = one.oldest_parked_at
        at = "" if oldest is None else oldest.isoformat(timespec="seconds")
        counts = (one.lag, one.ids, one.parked_events, one.parked_keys)
        consumers.add_row(Text(one.consumer), *map(str, counts), at)
        for part in one.partitions:
            committed = part.committed_offset
            offsets = ("" if committed is None else committed, part.end_offset)
            partitions.add_row(
                Text(one.consumer),
                Text(f"{part.topic}/{part.partition}"),
                *map(str, (*offsets, part.lag, part.ids)),
            )
    console = Console()
    console.print(consumers)
    console.print(partitions)


def _document(one: ParkedEvent) -> dict[str, object]:
    event = one.event
    return {
        "id": event.id,
        "type": event.type,
        "topic": event.topic,
        "partition": event.partition,
        "offset": event.offset,
        "key": event.key,
        "reason": one.reason,
        "parked_at": one.parked_at.isoformat(),
        "replay_requested": one.is_requested,
    }


def _print(found: list[ParkedEvent]) -> None:
    table = Table("event", "type", "key", "place", "parked at", "reason")
    for one in found:
        event = one.event
        place = f"{event.topic}/{event.partition}/{event.offset}"
        at = one.parked_at.isoformat(timespec="seconds")
        cells = (event.id, event.type, event.key or "", place, at, one.reason)
        table.add_row(*map(Text, cells))
    Console().print(table)
