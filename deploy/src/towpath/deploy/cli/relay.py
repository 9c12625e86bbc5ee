"""``towpath relay init | run | status``; ``state`` is a group of its own."""

from typing import Annotated

from cyclopts import App, Parameter

from towpath.deploy.cli.options import ConfigOption, config_file

app = App(name="relay", help="Set up the source, run the relay, ask how it is.")
app.command(
    "towpath.deploy.cli.state:app",
    name="state",
    help="Show what the relay knows, keep a copy, skip a transaction, repair.",
)


@app.command
def init(
    *,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    config: ConfigOption = None,
) -> int:
    """
    Create schema, publications and slot in the source; safe to repeat.

    Args:
        dry_run: Print the statements instead of running them.
        config: Configuration file.
    """
    import towpath.relay.__main__ as relay  # noqa: PLC0415 - keeps --help fast

    return relay.init(config_file(config), dry_run)


@app.command
def run(*, config: ConfigOption = None) -> int:
    """
    Follow the log and publish to Kafka until told to stop.

    Args:
        config: Configuration file.
    """
    import towpath.relay.__main__ as relay  # noqa: PLC0415 - keeps --help fast

    return relay.run(config_file(config))


@app.command
def status(
    *,
    json: Annotated[bool, Parameter(negative="")] = False,
    config: ConfigOption = None,
) -> int:
    """
    Tell how the relay is, as the source and the state topic tell it.

    Whether the slot is followed, how far it is behind and how much log it keeps; the
    lineage and its gap, what was published, and how old the newest marks are. Exit 1 if
    nobody follows the slot.

    Args:
        json: Print one JSON document.
        config: Configuration file.
    """
    import towpath.relay.__main__ as relay  # noqa: PLC0415 - keeps --help fast

    return relay.status(config_file(config), json)
