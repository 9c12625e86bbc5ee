"""``towpath verify [SINK...]`` and ``towpath wait --lsn LSN --sink NAME``."""

import json as json_text
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from towpath.cli.options import ConfigOption, Flag, config_file, read_settings
from towpath.schemas.failure import TowpathError, UsageError
from towpath.settings.logs import configure_logs

if TYPE_CHECKING:
    from towpath.sinks.verify.__main__ import VerifyOptions

_EVERY_S: Final = 60.0

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

    Rows may change meanwhile: a difference counts only if it remains after the sink has
    applied all changes committed before it was found. Exit 3 if the comparison cannot
    be made.

    Args:
        sinks: Their names in the configuration; by default, all that can be read.
        route: Compare only this route of one sink, named as in the sink or by its
            table.
        sample: Compare random rows: a number for each route, or a percentage of the
            source's rows, such as 5%; and about as many rows of the sink. The result
            holds for these rows only, and proves nothing if there are none.
        repair: Have the relay read differing rows again, for this sink only, and
            compare them once more. Keys that still differ are reported with the
            reason, with exit code 1.
        erase: With --repair, have the sink erase keys that no newly read row replaces,
            and read them again: a row whose position is above all that the sink has
            applied, a row that the sink has more than once, a key that the table
            cannot have.
        continuous: Verify one sink again and again, until interrupted; then exit with
            the code of the worst pass. A pass in which source, broker or sink does not
            answer counts as not verified.
        every: With --continuous, the seconds from the start of a pass to the next, at
            most a week.
        json: Print one JSON document for each sink; with --continuous, one on each
            line.
        config: Configuration file.
    """
    import towpath.sinks.verify.__main__ as verifier  # noqa: PLC0415 - keeps --help fast

    configure_logs()
    path = config_file(config)
    every_s = every if continuous else None
    options = verifier.VerifyOptions(json, route, sample, repair, every_s, erase)
    names = verifier.chosen_sinks(read_settings(path), sinks, options)
    if len(names) == 1:
        return verifier.verify(path, names[0], options)
    return worst([_verified(path, name, options) for name in names])


def _verified(path: Path, name: str, options: "VerifyOptions") -> int:
    """Verify one sink of several; its failure does not stop the others."""
    import towpath.sinks.verify.__main__ as verifier  # noqa: PLC0415 - keeps --help fast

    try:
        return verifier.verify(path, name, options)
    except UsageError:
        raise
    except TowpathError as failure:
        print(f"error: {failure}\nremedy: {failure.remedy}", file=sys.stderr)
        return TowpathError.exit_code


def worst(codes: list[int]) -> int:
    """Return 1 if anything differs, else 3 if anything was not verified, else 0."""
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
    Wait until a sink has applied a commit, so that its rows can be read there.

    Pass an LSN at or after the commit's end: the header Towpath-Lsn of a service's
    response, or pg_current_wal_flush_lsn() read after the commit. Exit 1 if the sink
    has not applied the commit in time, 3 if the source or Kafka does not answer.

    Args:
        lsn: The LSN as Postgres writes it, such as 0/16B3748.
        sink: The sink's name in the configuration.
        timeout: The longest time to wait, in seconds.
        json: Print one JSON document.
        config: Configuration file.
    """
    from towpath.sinks.wait import Waiter  # noqa: PLC0415 - keeps --help fast
    from towpath.sinks.wait.errors import NotAppliedError  # noqa: PLC0415 - the same

    configure_logs()
    settings = read_settings(config)
    try:
        with Waiter(settings) as waiter:
            applied = waiter.wait_for(lsn, sink, timeout)
    except NotAppliedError as error:
        if not json:
            raise
        document = {"sink": sink, "lsn": lsn, "applied": False, "missing": str(error)}
        print(json_text.dumps(document))
        return error.exit_code
    if json:
        document = applied._asdict() | {"lsn": lsn, "applied": True}
        print(json_text.dumps(document))
        return 0
    print(f"{sink} has applied {lsn}, after {applied.waited_s:.3f} s")
    if applied.parked:
        print(f"parked keys: {applied.parked:,} (see towpath dead-letters list)")
    return 0
