"""``towpath relay dead-letters list | show | replay | discard``."""

import json as json_text
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from towpath.cli.options import ConfigOption, Flag, JsonOption, read_settings

if TYPE_CHECKING:
    from towpath.settings import Settings

app = App(
    name="dead-letters",
    help="List parked aggregates; publish or discard their events.",
)

TypeOption = Annotated[
    str | None,
    Parameter(name="--type", help="The aggregate's type, if it has one."),
]
IdOption = Annotated[str, Parameter(name="--id", help="The aggregate's id.")]


@app.command(name="list")
def list_parked(*, json: JsonOption = False, config: ConfigOption = None) -> int:
    """
    List the parked aggregates, longest parked first; exit 1 if there are any.

    An aggregate is parked from its first dead letter on: its later events wait behind
    that dead letter, until all of them are replayed or discarded.

    Args:
        json: Print one JSON document.
        config: Configuration file.
    """
    from towpath.relay.cli import printing  # noqa: PLC0415 - fast --help
    from towpath.relay.commands import dead_letters  # noqa: PLC0415 - fast --help

    lines = dead_letters.listed(dead_letters.read_parked_events(_settings(config)))
    if json:
        print(json_text.dumps(lines, indent=1, ensure_ascii=False))
    elif lines:
        printing.print_parked(lines)
    else:
        print("no aggregate is parked")
    return int(bool(lines))


@app.command
def show(
    *,
    id: IdOption,  # noqa: A002 - the option's name
    type: TypeOption = None,  # noqa: A002 - likewise
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Show the dead letters of one aggregate: position, reason, form and topic.

    Args:
        id: The aggregate's id.
        type: The aggregate's type.
        json: Print one JSON document.
        config: Configuration file.
    """
    from towpath.relay.cli import printing  # noqa: PLC0415 - fast --help
    from towpath.relay.commands import dead_letters  # noqa: PLC0415 - fast --help

    only = dead_letters.aggregate_named(type, id)
    parked = dead_letters.read_parked_events(_settings(config), only)
    letters = parked[dead_letters.parked_aggregate(parked, type, id)]
    documents: list[dict[str, Any]] = [
        {
            "position": letter.position.decode(errors="replace"),
            "reason": letter.reason,
            "form": letter.form,
            "topic": letter.record and letter.record.topic,
        }
        for letter in letters
    ]
    if json:
        print(json_text.dumps(documents, indent=1, ensure_ascii=False))
        return 0
    printing.print_letters(documents)
    return 0


@app.command
def replay(
    *,
    id: IdOption,  # noqa: A002 - the option's name
    type: TypeOption = None,  # noqa: A002 - likewise
    drop: Annotated[bool, Flag] = False,
    config: ConfigOption = None,
) -> int:
    """
    Publish the events of a parked aggregate in order, and release it.

    The relay must not be running. Within a partition, the published events follow
    records of other aggregates that have higher positions. If the command dies between
    publishing and releasing, a second run publishes the same events again, with the
    same ids.

    Args:
        id: The aggregate's id.
        type: The aggregate's type.
        drop: Discard dead letters that hold no record, and publish the others.
        config: Configuration file.
    """
    return _release(config, (type, id), publishes=True, drops=drop)


@app.command
def discard(
    *,
    id: IdOption,  # noqa: A002 - the option's name
    type: TypeOption = None,  # noqa: A002 - likewise
    config: ConfigOption = None,
) -> int:
    """
    Discard the events of a parked aggregate, and release it.

    The relay must not be running. The events remain in the dead-letter topic. Later
    events of the aggregate are published without them.

    Args:
        id: The aggregate's id.
        type: The aggregate's type.
        config: Configuration file.
    """
    return _release(config, (type, id), publishes=False, drops=True)


def _release(
    config: ConfigOption,
    aggregate: tuple[str | None, str],
    *,
    publishes: bool,
    drops: bool,
) -> int:
    from towpath.relay.commands import dead_letters  # noqa: PLC0415 - fast --help

    published, dropped = dead_letters.release_aggregate(
        _settings(config), *aggregate, publishes=publishes, drops=drops
    )
    name = dead_letters.printable_id(aggregate[1])
    print(
        f"{aggregate[0] or 'aggregate'} {name} is released: "
        f"{published} events published, {dropped} discarded; start the relay"
    )
    return 0


def _settings(config: ConfigOption) -> "Settings":
    from towpath.settings.logs import configure_logs  # noqa: PLC0415 - fast --help

    # Only the result goes to standard output; log records go to standard error.
    configure_logs()
    return read_settings(config)
