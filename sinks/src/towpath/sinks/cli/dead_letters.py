"""``towpath dead-letters list | show | replay | discard``."""

import json as json_text
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from towpath.cli.options import ConfigOption, JsonOption, read_settings
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.settings import Settings
from towpath.settings.logs import configure_logs
from towpath.sinks.dead_letters.entries import Verb
from towpath.sinks.dead_letters.parked import OpenDeadLetters
from towpath.sinks.dead_letters.requests import (
    chosen_subjects,
    dead_letter_documents,
    named_subjects,
    open_summaries,
    request_outcomes,
)
from towpath.sinks.kafka.dead_letter_topic import DeadLetterTopic
from towpath.sinks.state.declare import sink_named

app = App(
    name="dead-letters",
    help="List, show, replay or discard records that a sink could not apply.",
)
SinkOption = Annotated[str, Parameter(name="--sink", help="The sink's name.")]
KeyOption = Annotated[
    str | None,
    Parameter(
        name="--key",
        help="A key as in the records, optionally preceded by its topic and a space; "
        "only its values (7, 7:de); or one record as TOPIC/PARTITION/OFFSET.",
    ),
]

_COLUMNS: Final = ("topic", "key", "letters", "first_position", "reason")
_NOT_ANSWERED: Final = 3


@app.command(name="list")
def list_dead_letters(
    *,
    sink: Annotated[str | None, Parameter(name="--sink")] = None,
    key: KeyOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """
    List the dead letters, one line per key; exit 1 if there are any.

    A dead letter parks its key: later changes of the key wait until its dead letters
    are replayed or discarded, or a snapshot reads the row again.

    Args:
        sink: The sink; all sinks by default.
        key: Only this key.
        json: Print one JSON document.
        config: Configuration file.
    """
    settings = _settings(config)
    names = [s.name for s in settings.sink] if sink is None else [sink]
    lines = [
        {"sink": name, **line}
        for name in names
        for line in open_summaries(_read(settings, name)[1], key)
    ]
    if json:
        print(json_text.dumps(lines, indent=1, ensure_ascii=False))
    else:
        _print(lines)
    return int(bool(lines))


@app.command
def show(
    *,
    sink: SinkOption,
    key: KeyOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Show dead letters in full: reason, position, headers, key and value.

    Args:
        sink: The sink's name.
        key: Only this key.
        json: Print one JSON document.
        config: Configuration file.
    """
    _, open_dead_letters = _read(_settings(config), sink)
    dead_letters = [
        x
        for subject in named_subjects(open_dead_letters, key)
        for x in open_dead_letters.of(subject)
    ]
    documents = dead_letter_documents(dead_letters)
    if json:
        print(json_text.dumps(documents, indent=1, ensure_ascii=False))
        return 0
    console = Console()
    for dead_letter in documents:
        headers = dead_letter.pop("headers")
        for name, value in (*dead_letter.items(), *headers.items()):
            console.print(Text(f"{name}: {value}"))
        console.print()
    return 0


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class _DeadLetterOptions:
    """The dead letters of a request, how long to wait, and how to print the outcome."""

    sink: SinkOption
    key: KeyOption = None
    all_: Annotated[
        bool, Parameter(name="--all", negative="", help="All dead letters of the sink.")
    ] = False
    timeout_s: Annotated[
        float,
        Parameter(name="--timeout", help="How many seconds to wait for the sink."),
    ] = 30.0
    json: JsonOption = False
    config: ConfigOption = None


@app.command
def replay(*, request: _DeadLetterOptions) -> int:
    """
    Apply dead letters again, in order per key, under the usual position guard.

    A running sink applies them now, a stopped one at its next start. Exit 1 if any of
    them is refused again: it remains a dead letter. Exit 3 if the sink has not answered
    in time: the request stays open.
    """
    return _send(Verb.REPLAY, request)


@app.command
def discard(*, request: _DeadLetterOptions) -> int:
    """
    Discard dead letters; the current rows of their keys are read from the source.

    Exit 1 if any of them could not be discarded. Exit 3 if the sink has not answered in
    time: the request stays open.
    """
    return _send(Verb.DISCARD, request)


def _send(verb: Verb, request: _DeadLetterOptions) -> int:
    """Send requests about one key's dead letters, or about all; print the outcomes."""
    if (request.key is None) is not request.all_:
        message = f"to {verb}, pass either --key or --all"
        raise UsageError(message)
    topic, open_dead_letters = _read(_settings(request.config), request.sink)
    keys = None if request.key is None else [request.key]
    subjects = chosen_subjects(open_dead_letters, request.sink, keys)
    lines = request_outcomes(
        topic, open_dead_letters, subjects, verb, SystemClock(), request.timeout_s
    )
    if request.json:
        print(json_text.dumps(lines, indent=1, ensure_ascii=False))
    else:
        for line in lines:
            print(f"{line['key'] or line['topic']}: {line['outcome']}")
    if any(line["state"] == "open" for line in lines):
        return _NOT_ANSWERED
    return int(any(line["state"] == "refused" for line in lines))


def _read(settings: Settings, sink: str) -> tuple[DeadLetterTopic, OpenDeadLetters]:
    """Read the open dead letters of a sink."""
    topic = DeadLetterTopic(settings, sink_named(settings, sink).name)
    return topic, OpenDeadLetters().read(topic.entries())


def _settings(config: ConfigOption) -> Settings:
    # Standard output is for the result: the client library's log records go to stderr.
    configure_logs()
    return read_settings(config)


def _print(lines: Sequence[dict[str, Any]]) -> None:
    if not lines:
        print("no dead letters")
        return
    table = Table("sink", *(c.replace("_", " ") for c in _COLUMNS), box=None)
    for line in lines:
        table.add_row(*(Text(str(line[name])) for name in ("sink", *_COLUMNS)))
    Console().print(table)
