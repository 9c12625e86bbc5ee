"""``towpath verify SINK``."""

from typing import Annotated, Final

from cyclopts import Parameter

from towpath.deploy.cli.places import ConfigOption, config_file
from towpath.schemas.failure import UsageError
from towpath.settings.logs import configure_logs

_EVERY_S: Final = 60.0

Flag = Parameter(negative="")
Names = Parameter(name=("--route", "--table"), negative="", consume_multiple=False)


def verify(  # noqa: PLR0913 - a command's options
    sink: str,
    /,
    *,
    route: Annotated[tuple[str, ...], Names] = (),
    sample: str = "",
    repair: Annotated[bool, Flag] = False,
    erase: Annotated[bool, Flag] = False,
    continuous: Annotated[bool, Flag] = False,
    every: float = _EVERY_S,
    json: Annotated[bool, Flag] = False,
    config: ConfigOption = None,
) -> int:
    """
    Compare a sink with the source, every key and column; exit 1 if they differ.

    Both may change meanwhile: a difference counts only if it stays when the sink has
    passed what the source had. Exit 3 if it cannot be told.

    Args:
        sink: Its name in the configuration.
        route: Compare only this route, named as in the sink or by its table.
        sample: Compare rows that chance picks, so many of each route, or a percentage
            as 5%: of the source's, and about as many of the sink's. It proves no more
            than these rows, and nothing if there are none.
        repair: Have what differs read anew for this sink, and compare those keys again;
            what differs even then is told with the reason, and exits by 1.
        erase: With --repair, have the sink erase just those keys that no row read anew
            replaces, and read them again: a row above all positions that the sink ever
            applied, one that stands there more than once, a key the table cannot have.
        continuous: Begin anew, until interrupted; then exit by the worst of all. A pass
            in which source, broker or sink do not answer could not be verified.
        every: How many seconds from one beginning to the next.
        json: Print one JSON document; with --continuous, one on each line.
        config: Configuration file.
    """
    import towpath.sinks.verify.__main__ as judge  # noqa: PLC0415 - keeps --help fast

    configure_logs()
    if erase and not repair:
        message = "--erase goes with --repair"
        raise UsageError(message)
    every_s = every if continuous else None
    wishes = judge.Wishes(json, route, sample, repair, every_s, erase)
    return judge.verify(config_file(config), sink, wishes)
