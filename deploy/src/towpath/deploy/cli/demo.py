"""``towpath demo``."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from towpath.deploy.cli.places import StateOption, state_folder


def demo(  # noqa: PLR0913 - each is an option of the command
    *,
    rate: Annotated[
        float, Parameter(validator=Number(gt=0, lte=1000), help="Checkouts a second.")
    ] = 50.0,
    orders: Annotated[
        int, Parameter(validator=Number(gte=0), help="Orders there before the slot.")
    ] = 50_000,
    duration: Annotated[
        float,
        Parameter(validator=Number(gt=0), help="Seconds of checkouts, at least."),
    ] = 40.0,
    keep: Annotated[bool, Parameter(negative="", help="Leave all running.")] = False,
    json: Annotated[Path | None, Parameter(help="Write the result there.")] = None,
    before_verify: Annotated[
        str | None, Parameter(help="Shell command to run when all is at rest.")
    ] = None,
    state: StateOption = None,
) -> int:
    """
    Run the whole platform under load, and prove that every sink equals the database.

    Exit 0 only if there is not one difference, 1 if keys differ, 3 if a part could not
    be started. Nothing is left running but with --keep. The state folder is the demo's
    own, demo/ below the usual one unless named, and begins empty each time.

    Args:
        rate: Checkouts a second.
        orders: How many orders exist before the slot is created.
        duration: How long checkouts go on at least, in seconds.
        keep: Leave everything running afterwards and print the addresses; Ctrl-C ends.
        json: Write the result as JSON to this file too.
        before_verify: Shell command to run when everything is at rest, before the
            sinks are compared; TOWPATH_CONFIG names the configuration.
        state: State folder.
    """
    from towpath.deploy.demo.plan import Options  # noqa: PLC0415 - keeps --help fast
    from towpath.deploy.demo.play import play  # noqa: PLC0415 - keeps --help fast

    options = Options(
        rate=rate,
        orders=orders,
        duration_s=duration,
        keep=keep,
        json_file=json,
        before_verify=before_verify,
    )
    return play(options, state or state_folder(None) / "demo", Console())
