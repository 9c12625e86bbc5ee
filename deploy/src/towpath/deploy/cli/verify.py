"""``towpath verify [SINK...]`` and ``towpath wait --lsn LSN --sink NAME``."""

import json as json_text
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from towpath.deploy.cli.options import ConfigOption, config_file
from towpath.schemas.failure import UnavailableError, UsageError
from towpath.settings import load
from towpath.settings.logs import configure_logs

if TYPE_CHECKING:
    from towpath.sinks.verify.__main__ import VerifyOptions

_EVERY_S: Final = 60.0

Flag = Parameter(negative="")
Names = Parameter(name=("--route", "--table"), negative="", consume_multiple=False)


def verify(  # noqa: PLR0913 - a command's options
    *sinks: str,
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
    Compare sinks with the source, every key and column; exit 1 if any differs.

    Both may change meanwhile: a difference counts only if it stays when the sink has
    passed what the source had. Exit 3 if it cannot be told.

    Args:
        sinks: Their names in the configuration; left out, all that can be read back.
        route: Compare only this route of one sink, named as in the sink or by its
            table.
        sample: Compare rows that chance picks, so many of each route, or a percentage
            as 5%: of the source's, and about as many of the sink's. It proves no more
            than these rows, and nothing if there are none.
        repair: Have what differs read anew for this sink, and compare those keys again;
            what differs even then is told with the reason, and exits by 1.
        erase: With --repair, have the sink erase just those keys that no row read anew
            replaces, and read them again: a row above all positions that the sink ever
            applied, one that stands there more than once, a key the table cannot have.
        continuous: Verify one sink again and again, until interrupted; then exit by
            the worst of all passes. A pass in which source, broker or sink do not
            answer could not be verified.
        every: How many seconds from one beginning to the next.
        json: Print one JSON document for each sink; with --continuous, one on each
            line.
        config: Configuration file.
    """
    import towpath.sinks.verify.__main__ as judge  # noqa: PLC0415 - keeps --help fast

    configure_logs()
    if erase and not repair:
        message = "--erase goes with --repair"
        raise UsageError(message)
    path = config_file(config)
    names = sinks or _readable(path)
    if len(names) != 1 and (route or continuous):
        message = "--route and --continuous are for one sink: name it"
        raise UsageError(message)
    every_s = every if continuous else None
    options = judge.VerifyOptions(json, route, sample, repair, every_s, erase)
    if len(names) == 1:
        return judge.verify(path, names[0], options)
    return worst([_verified(path, name, options) for name in names])


def _readable(path: Path) -> tuple[str, ...]:
    """Name the sinks whose targets can be read back."""
    from towpath.sinks.kinds import kind_of  # noqa: PLC0415 - keeps --help fast

    declared = load(path, os.environ).sink  # noqa: TID251 - a root
    names = tuple(sink.name for sink in declared if kind_of(sink).read is not None)
    if not names:
        message = "the configuration has no sink that can be read back"
        raise UsageError(message)
    return names


def _verified(path: Path, name: str, options: "VerifyOptions") -> int:
    """Verify one sink of several; a part that does not answer holds back no other."""
    import towpath.sinks.verify.__main__ as judge  # noqa: PLC0415 - keeps --help fast

    try:
        return judge.verify(path, name, options)
    except UnavailableError as failure:
        print(f"error: {failure}\nremedy: {failure.remedy}", file=sys.stderr)
        return failure.exit_code


def worst(codes: list[int]) -> int:
    """Return 1 if anything differs, else 3 if anything could not be told, else 0."""
    return 1 if 1 in codes else max(codes)


def wait(
    *,
    lsn: str,
    sink: str,
    timeout: Annotated[float, Parameter(name="--timeout")] = 60.0,
    json: Annotated[bool, Parameter(negative="")] = False,
    config: ConfigOption = None,
) -> int:
    """
    Wait until a sink has applied a commit, so that one's own write can be read there.

    The LSN is one at or behind the commit's end: the header Towpath-Lsn of a service's
    answer, or pg_current_wal_flush_lsn() read after the commit. Exit 1 if the sink has
    not applied it in time, 3 if the source or Kafka does not answer.

    Args:
        lsn: As Postgres writes it, such as 0/16B3748.
        sink: The sink's name in the configuration.
        timeout: How many seconds to wait at most.
        json: Print one JSON document.
        config: Configuration file.
    """
    from towpath.sinks.wait import Waiter  # noqa: PLC0415 - keeps --help fast
    from towpath.sinks.wait.errors import NotAppliedError  # noqa: PLC0415 - the same

    configure_logs()
    settings = load(config_file(config), os.environ)  # noqa: TID251 - a root
    try:
        with Waiter(settings) as waiter:
            applied = waiter.wait_for(lsn, sink, timeout)
    except NotAppliedError as error:
        if not json:
            raise
        told = {"sink": sink, "lsn": lsn, "applied": False, "missing": str(error)}
        print(json_text.dumps(told))
        return error.exit_code
    if json:
        told = applied._asdict() | {"lsn": lsn, "applied": True}
        print(json_text.dumps(told))
        return 0
    print(f"{sink} has applied {lsn}, after {applied.waited_s:.3f} s")
    if applied.parked:
        print(f"{applied.parked:,} keys are parked: towpath dead-letters list")
    return 0
