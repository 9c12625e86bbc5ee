"""``towpath dead-letters list | show | replay | discard``."""

import json as json_text
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from towpath.deploy.cli.options import ConfigOption, config_file
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.settings import Settings, load
from towpath.settings.logs import configure_logs
from towpath.sinks.dead_letters import view
from towpath.sinks.dead_letters.letter import Answer, Ending, Matter, Verb
from towpath.sinks.dead_letters.parked import OpenDeadLetters
from towpath.sinks.dead_letters.requests import ask
from towpath.sinks.kafka.dead_letter_topic import DeadLetterTopic
from towpath.sinks.state.declare import sink_named

app = App(
    name="dead-letters",
    help="List, show, replay or give up what a sink could not apply.",
)
SinkOption = Annotated[str, Parameter(name="--sink", help="The sink's name.")]
KeyOption = Annotated[
    str | None,
    Parameter(
        name="--key",
        help="A key as the records have it, its values alone (7, 7:de), or one "
        "record as TOPIC/PARTITION/OFFSET.",
    ),
]
JsonOption = Annotated[
    bool, Parameter(name="--json", negative="", help="Print one JSON document.")
]

_COLUMNS: Final = ("topic", "key", "letters", "first_position", "reason")
_NOT_ANSWERED: Final = 3


@app.command(name="list")
def list_letters(
    *,
    sink: Annotated[str | None, Parameter(name="--sink")] = None,
    key: KeyOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """
    List what is set aside, a line per key; exit 1 if there is anything.

    A key is parked from its first letter on: its later changes wait behind it, until
    they are replayed or discarded, or its row is read anew by a snapshot.

    Args:
        sink: Left out, all sinks.
        key: Only this key.
        json: Print one JSON document.
        config: Configuration file.
    """
    settings = _settings(config)
    names = [s.name for s in settings.sink] if sink is None else [sink]
    told = [
        {"sink": name, **line}
        for name in names
        for line in view.listed(_read(settings, name)[1], key)
    ]
    if json:
        print(json_text.dumps(told, indent=1, ensure_ascii=False))
    else:
        _print(told)
    return int(bool(told))


@app.command
def show(
    *,
    sink: SinkOption,
    key: KeyOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Show letters whole: reason, position, headers, key and value.

    Args:
        sink: The sink's name.
        key: Only this key.
        json: Print one JSON document.
        config: Configuration file.
    """
    _, book = _read(_settings(config), sink)
    letters = [x for matter in view.chosen(book, key) for x in book.of(matter)]
    told = view.shown(letters)
    if json:
        print(json_text.dumps(told, indent=1, ensure_ascii=False))
        return 0
    console = Console()
    for letter in told:
        headers = letter.pop("headers")
        for name, value in (*letter.items(), *headers.items()):
            console.print(Text(f"{name}: {value}"))
        console.print()
    return 0


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """Which letters are meant, how long to wait, and how to tell what became of it."""

    sink: SinkOption
    key: KeyOption = None
    all_: Annotated[
        bool, Parameter(name="--all", negative="", help="All that is set aside.")
    ] = False
    timeout_s: Annotated[
        float,
        Parameter(name="--timeout", help="How many seconds to wait for the sink."),
    ] = 30.0
    json: JsonOption = False
    config: ConfigOption = None


@app.command
def replay(*, wish: _Wish) -> int:
    """
    Have letters applied again, per key in order, through the same guard as ever.

    The running sink does it; one that does not run does it at its next start. Exit 1
    if any of them is refused again: those stay as they are.
    """
    return _ask(Verb.REPLAY, wish)


@app.command
def discard(*, wish: _Wish) -> int:
    """
    Give letters up; the rows of their keys are asked for as they are.

    Exit 1 if any of them could not be given up.
    """
    return _ask(Verb.DISCARD, wish)


def _ask(verb: Verb, wish: _Wish) -> int:
    """Ask the sink for letters of a key, or for all, and tell what it said."""
    if (wish.key is None) is not wish.all_:
        message = f"name a --key to {verb}, or say --all"
        raise UsageError(message)
    topic, book = _read(_settings(wish.config), wish.sink)
    matters = view.chosen(book, wish.key)
    if not matters:
        message = (
            "nothing of that key is set aside: "
            f"towpath dead-letters list --sink {wish.sink}"
        )
        raise UsageError(message)
    said = ask(topic, matters, verb, SystemClock(), wish.timeout_s)
    told = [_outcome(matter, len(book.of(matter)), said[matter]) for matter in matters]
    if wish.json:
        print(json_text.dumps(told, indent=1, ensure_ascii=False))
    else:
        for line in told:
            print(f"{line['key'] or line['topic']}: {line['outcome']}")
    if any(line["state"] == "open" for line in told):
        return _NOT_ANSWERED
    return int(any(line["state"] == "refused" for line in told))


def _outcome(
    matter: Matter, letters: int, said: Ending | Answer | None
) -> dict[str, Any]:
    """Say what became of one matter."""
    if said is None:
        state, outcome = "open", "the sink has not taken the order yet: it stands"
    elif isinstance(said, Answer):
        state, outcome = "refused", f"stays set aside: {said.text}"
    else:
        state, outcome = "done", said.how
    return {
        "topic": matter.topic,
        "key": view.text_of_key(matter.key),
        "letters": letters,
        "state": state,
        "outcome": outcome,
    }


def _read(settings: Settings, sink: str) -> tuple[DeadLetterTopic, OpenDeadLetters]:
    """Read the open letters of a sink."""
    topic = DeadLetterTopic(settings, sink_named(settings, sink).name)
    return topic, OpenDeadLetters().read(topic.entries())


def _settings(config: ConfigOption) -> Settings:
    # Standard output is the answer's: what the client library says goes beside it.
    configure_logs()
    return load(config_file(config), os.environ)  # noqa: TID251 - a root


def _print(told: Sequence[dict[str, Any]]) -> None:
    if not told:
        print("nothing is set aside")
        return
    table = Table("sink", *(c.replace("_", " ") for c in _COLUMNS), box=None)
    for line in told:
        table.add_row(*(Text(str(line[name])) for name in ("sink", *_COLUMNS)))
    Console().print(table)
