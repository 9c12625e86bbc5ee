"""``towpath inbox create | parked | replay | discard``: look after an inbox."""

import json as json_text
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from towpath.cli.options import JsonOption
from towpath.inbox.inbox import SCHEMA, Inbox, ParkedEvent, create_statements
from towpath.schemas.failure import UnavailableError, UsageError

if TYPE_CHECKING:
    import psycopg

app = App(name="inbox", help="Create an inbox; list, replay or drop parked events.")

DsnOption = Annotated[
    str,
    Parameter(name="--dsn", env_var="TOWPATH_INBOX_DSN", help="The database."),
]
ConsumerOption = Annotated[str, Parameter(name="--consumer", help="Its name.")]
SchemaOption = Annotated[str, Parameter(name="--schema", help="Of the tables.")]


@app.command
def create(
    *, dsn: DsnOption, schema: SchemaOption = SCHEMA, dry_run: bool = False
) -> int:
    """
    Create the tables of the inbox; safe to repeat.

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
def parked(
    *,
    dsn: DsnOption,
    consumer: ConsumerOption,
    schema: SchemaOption = SCHEMA,
    json: JsonOption = False,
) -> int:
    """
    List the parked events in the order of their parking; exit 1 if there are any.

    Args:
        dsn: The database.
        consumer: The consumer.
        schema: The schema of the tables.
        json: Print one JSON document.
    """
    with _connect(dsn) as connection:
        found = Inbox(consumer, schema=schema).parked(connection)
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
    Request a replay of a parked event with its followers, or of all parked events.

    A running consumer carries it out within seconds, in order; an event that fails
    again stays parked with its new reason, and so do its followers.

    Args:
        event: The event's id; left out, all.
        dsn: The database.
        consumer: The consumer.
        schema: The schema of the tables.
    """
    with _connect(dsn) as connection:
        count = Inbox(consumer, schema=schema).request_replay(connection, event)
    if event is not None and not count:
        message = f"{consumer} has no parked event {event}"
        raise UsageError(message)
    print(f"replay requested: {count} parked events")
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
    with _connect(dsn) as connection:
        was_parked = Inbox(consumer, schema=schema).discard(connection, event)
    if not was_parked:
        message = f"{consumer} has no parked event {event}"
        raise UsageError(message)
    print(f"discarded {event}")
    return 0


def _connect(dsn: str) -> "psycopg.Connection[tuple[object, ...]]":
    try:
        import psycopg  # noqa: PLC0415 - the library does without it
    except ImportError as error:
        message = "the command needs psycopg: pip install 'towpath-inbox[cli]'"
        raise UsageError(message) from error
    try:
        return psycopg.connect(dsn)
    except psycopg.OperationalError as error:
        message = f"the database cannot be reached: {str(error).splitlines()[0]}"
        raise UnavailableError(message) from error


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
        words = (event.id, event.type, event.key or "", place, at, one.reason)
        table.add_row(*map(Text, words))
    Console().print(table)
