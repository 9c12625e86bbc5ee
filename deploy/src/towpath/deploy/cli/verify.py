"""``towpath verify SINK``."""

from typing import Annotated

from cyclopts import Parameter

from towpath.deploy.cli.places import ConfigOption, config_file


def verify(
    sink: str,
    /,
    *,
    json: Annotated[bool, Parameter(negative="")] = False,
    config: ConfigOption = None,
) -> int:
    """
    Compare a sink with the source, every key and column; exit 1 if they differ.

    Args:
        sink: Its name in the configuration.
        json: Print one JSON document.
        config: Configuration file.
    """
    import towpath.sinks.verify.__main__ as judge  # noqa: PLC0415 - keeps --help fast

    return judge.verify(config_file(config), sink, json)
