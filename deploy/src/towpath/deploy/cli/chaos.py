"""``towpath chaos snapshot``."""

from random import SystemRandom
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

app = App(name="chaos", help="Break things at random, and prove that nothing is lost.")


@app.command
def snapshot(  # noqa: PLR0913 - each is an option of the command
    *,
    minutes: Annotated[float, Parameter(validator=Number(gt=0))] = 5.0,
    seed: int | None = None,
    kill: str = "relay,backend",
    ddl: bool = True,
    round_seconds: Annotated[float, Parameter(validator=Number(gte=1))] = 20.0,
    json: Annotated[bool, Parameter(negative="")] = False,
    keep: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """
    Read tables again and again while everything happens that may, and judge it.

    Sessions write every kind of change, some of which are in the log long before any
    query sees them; another alters and rewrites the tables; snapshots are asked for,
    stopped and paused; the relay and its sessions in the server are killed. A reader of
    the topics judges each row as it comes, and after each round what it has must be
    what the tables hold. A stack of its own is started in a temporary folder and
    removed again.

    Exit 0 if all was equal; 1 if anything was not; 3 if a part was not there.

    Args:
        minutes: For how long new rounds begin.
        seed: What the actors draw from, to have a run again [a new one].
        kill: Who is killed: relay, backend, both with a comma between, or nobody.
        ddl: Whether tables are altered.
        round_seconds: How long everybody is at work before a round is judged.
        json: Print one JSON document.
        keep: Leave logs and configuration files in place.
    """
    from towpath.deploy.bench.chaos import run_chaos  # noqa: PLC0415 - keeps --help fast
    from towpath.loadtests.chaos.context import VICTIMS, ChaosOptions  # noqa: PLC0415 - as above
    from towpath.schemas.failure import UsageError  # noqa: PLC0415 - as above

    victims = () if kill == "nobody" else tuple(kill.split(","))
    unknown = sorted(set(victims) - set(VICTIMS))
    if unknown:
        message = f"nobody is called {unknown[0]!r}; there are: {', '.join(VICTIMS)}"
        raise UsageError(message)
    options = ChaosOptions(
        minutes=minutes,
        seed=SystemRandom().randrange(10**6) if seed is None else seed,
        kill=victims,
        ddl=ddl,
        round_s=round_seconds,
    )
    return run_chaos(options, keep=keep, as_json=json)
