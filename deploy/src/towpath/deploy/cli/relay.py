"""``towpath relay init | run | status``."""

from typing import Annotated

from cyclopts import App, Parameter

from towpath.deploy.cli.places import ConfigOption, config_file

app = App(name="relay", help="Set up the source, run the relay, ask how it is.")


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
    Tell how the slot and the relay are.

    Args:
        json: Print one JSON document.
        config: Configuration file.
    """
    import towpath.relay.__main__ as relay  # noqa: PLC0415 - keeps --help fast

    return relay.status(config_file(config), json)
