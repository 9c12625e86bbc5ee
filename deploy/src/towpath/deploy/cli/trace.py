"""
``towpath trace``: the path of one aggregate or row, from the source to each sink.

``towpath replay`` has one sink read the aggregate or row again from the source.
"""

import json as json_text
from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Final, NamedTuple

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from towpath.cli.options import ConfigOption, JsonOption, read_settings
from towpath.deploy.cli import snapshot
from towpath.deploy.trace import trace_aggregate, trace_row
from towpath.deploy.trace.journey import (
    Journey,
    RouteState,
    TracedRoute,
    document_of,
    state_of,
    waiting_for,
)
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.settings.logs import configure_logs
from towpath.sinks.key_text import key_parts

_FINE: Final = {RouteState.CURRENT, RouteState.APPLIED, RouteState.DELETED}
_MEANINGS: Final = {
    RouteState.CURRENT: "the sink stores the newest version",
    RouteState.APPLIED: "the sink has applied the newest record",
    RouteState.DELETED: (
        "the sink has applied the deletion, or lacks the row, as the source does"
    ),
    RouteState.DIFFERS: "the sink stores an older version, or none: run towpath verify",
}


class TraceSubjectError(UsageError):
    """The command does not name exactly one aggregate or one row."""

    remedy: ClassVar[str] = (
        "Give the type and the id of an aggregate, as in towpath trace order 7, or "
        "--table and --key of a row, as in towpath trace --table shop.orders --key 7."
    )


def trace(  # noqa: PLR0913 - the options of a command
    type_: Annotated[str | None, Parameter(name="TYPE")] = None,
    id_: Annotated[str | None, Parameter(name="ID")] = None,
    *,
    table: str | None = None,
    key: str | None = None,
    minutes: float | None = None,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Trace one aggregate or row: its records in Kafka, and its state in each sink.

    Each record is shown with partition, offset, position and commit time; each sink
    with the position that it stores, how far behind it is, and the dead letters of the
    key. Values are not shown. The whole topic is searched, so a large one takes a
    while. Exit 1 if a sink lacks the newest version, has a dead letter for the key, or
    cannot be read.

    Args:
        type_: The aggregate's type, such as order.
        id_: The aggregate's id.
        table: The table of a row, schema.table.
        key: The values of its primary key, joined by colons; in a value, a colon is
            written %3A, and a percent sign %25.
        minutes: Search only this many minutes back; by default, the whole topic.
        json: Print one JSON document.
        config: Configuration file.
    """
    configure_logs()
    subject = _subject(type_, id_, table, key)
    settings = read_settings(config)
    since = None if minutes is None else _minutes_ago(minutes)
    follow = trace_row if subject.is_row else trace_aggregate
    journey = follow(settings, subject.name, subject.key, since)
    if json:
        print(json_text.dumps(document_of(journey), indent=1))
    else:
        _print(journey, Console())
    states = {state_of(route, journey) for route in journey.routes}
    return int(not states <= _FINE)


def replay(  # noqa: PLR0913 - the options of a command
    type_: Annotated[str | None, Parameter(name="TYPE")] = None,
    id_: Annotated[str | None, Parameter(name="ID")] = None,
    *,
    to: str,
    table: str | None = None,
    key: str | None = None,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Have one sink read one aggregate or row again from the source.

    The relay runs a snapshot of this key for this sink, so the sink's guard applies: a
    newer version in the sink is kept. An aggregate needs a view of its documents in the
    source, as a snapshot of its topic does. Exit 1 if the relay refuses the snapshot,
    or does not deliver the row; 3 if no relay answers.

    Args:
        type_: The aggregate's type, such as order.
        id_: The aggregate's id.
        to: The sink.
        table: The table of a row, schema.table.
        key: The values of its primary key, joined by colons; in a value, a colon is
            written %3A, and a percent sign %25.
        json: Print one JSON document.
        config: Configuration file.
    """
    subject = _subject(type_, id_, table, key)
    parts = key_parts(subject.key) if subject.is_row else (subject.key,)
    # Always a JSON list: a bare string could look like one.
    listed_key = json_text.dumps(parts)
    collection = subject.name if subject.is_row else f"outbox.{subject.name}"
    options = snapshot.SnapshotOptions(target=to, key=(listed_key,))
    return snapshot.start(
        collection, options=options, wait=True, json=json, config=config
    )


def _minutes_ago(minutes: float) -> datetime:
    """
    Return the time ``minutes`` ago.

    Raises:
        UsageError: There is no such time, or it is in the future.
    """
    try:
        before = timedelta(minutes=minutes)
        if before >= timedelta(0):
            return SystemClock().now() - before
    except (ValueError, OverflowError):
        # Not a number, or a time before the year 1.
        pass
    message = f"--minutes must be a time before now, not {minutes:g}"
    raise UsageError(message)


class _Subject(NamedTuple):
    """A row with its table and key, or an aggregate with its type and id."""

    is_row: bool
    name: str
    key: str


def _subject(
    type_: str | None, id_: str | None, table: str | None, key: str | None
) -> _Subject:
    """
    Return the aggregate or row that the command names.

    Raises:
        TraceSubjectError: The command does not name exactly one aggregate or one row.
    """
    if type_ is not None and id_ is not None and table is None and key is None:
        return _Subject(is_row=False, name=type_, key=id_)
    if table is not None and key is not None and type_ is None and id_ is None:
        return _Subject(is_row=True, name=table, key=key)
    message = "name one aggregate, or one row"
    raise TraceSubjectError(message)


def _print(journey: Journey, console: Console) -> None:
    console.print(Text(journey.subject, "bold"))
    if journey.is_in_source is not None:
        verb = "is" if journey.is_in_source else "is not"
        console.print(f"source: the row {verb} in its table")
    searched = sum(scan.records for scan in journey.scans)
    topics = ", ".join(scan.topic for scan in journey.scans)
    console.print(Text(f"searched: {searched:,} records of {topics}"))
    if journey.records:
        console.print(_records(journey))
    else:
        console.print("none of these records has this key")
    console.print(_routes(journey))


def _records(journey: Journey) -> Table:
    table = Table("committed", "record", "topic / partition / offset", "position")
    for one in journey.records:
        offset = f"{one.topic} / {one.partition} / {one.offset}"
        at = f"{one.committed_at:%Y-%m-%d %H:%M:%S.%f}"[:-3]
        table.add_row(*map(Text, (at, one.kind, offset, one.position)))
    return table


def _routes(journey: Journey) -> Table:
    table = Table("sink", "route", "state", "stored position", "last batch")
    for route in journey.routes:
        state = state_of(route, journey)
        style = "green" if state in _FINE else "red"
        table.add_row(
            Text(route.sink),
            Text(route.route),
            Text(_sentence(route, journey), style),
            Text(route.stored_position or ""),
            Text(route.updated_at[:19]),
        )
    return table


def _sentence(route: TracedRoute, journey: Journey) -> str:
    state = state_of(route, journey)
    match state:
        case RouteState.BEHIND:
            count = len(waiting_for(route, journey))
            verb = "is" if count == 1 else "are"
            return f"behind: {count} of these records {verb} not applied yet"
        case RouteState.PARKED | RouteState.INCOMPLETE:
            reasons = "; ".join(str(one["reason"]) for one in route.dead_letters)
            return f"{state}: {reasons}"
        case RouteState.UNKNOWN:
            return f"unknown: {route.error}"
        case _:
            return f"{state}: {_MEANINGS[state]}"
