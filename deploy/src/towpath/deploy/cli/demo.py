"""``towpath demo``."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from towpath.deploy.cli.options import (
    ConfigOption,
    StateOption,
    config_file,
    state_folder,
)


def demo(  # noqa: PLR0913 - each is an option of the command
    *,
    rate: Annotated[float, Parameter(validator=Number(gt=0, lte=1000))] = 50.0,
    orders: Annotated[int, Parameter(validator=Number(gte=0))] = 50_000,
    duration: Annotated[float, Parameter(validator=Number(gt=0))] = 40.0,
    keep: Annotated[bool, Parameter(negative="")] = False,
    json: Path | None = None,
    before_verify: str | None = None,
    join: str | None = None,
    config: ConfigOption = None,
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
        join: Start no platform, but join one that others run, as in containers: the
            address of its orders service. It keeps the sink that is added.
        config: With --join, the platform's configuration.
        state: State folder.
    """
    from towpath.deploy.demo import run  # noqa: PLC0415 - keeps --help fast
    from towpath.deploy.demo.stage import (  # noqa: PLC0415 - keeps --help fast
        DemoOptions,
        JoinedPlatform,
    )

    options = DemoOptions(
        rate=rate,
        orders=orders,
        duration_s=duration,
        keep=keep,
        json_file=json,
        before_verify=before_verify,
    )
    folder = state or state_folder(None) / "demo"
    if join is not None:
        at = JoinedPlatform(config_file(config), join.rstrip("/"))
        return run.run_joined(options, at, folder, Console())
    return run.run_demo(options, folder, Console())
