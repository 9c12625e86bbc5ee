"""
The root of the ``towpath`` command: it runs the commands of the installed packages.

A package declares its commands as entry points of the group ``towpath.commands``:
``relay`` for a command or a group of commands, ``sink.run`` for one command of a group
to which several packages contribute. A command is imported when it is run, so that
``--help`` answers immediately. A failure of the platform is printed on standard error,
followed by its remedy; the class of the failure determines the exit code.
"""

import os
import select
import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points, version
from typing import Final, NamedTuple

from cyclopts import App, CycloptsError, CycloptsPanel, UnknownCommandError

from towpath.cli.options import INTERRUPTED

# The exit code that a shell reports for a program that was killed by SIGPIPE.
READER_GONE: Final = 141
_LOG_FORMAT: Final = "--log-format"
# Also defined in logs.py, whose import would slow down --help.
FORMAT_VARIABLE: Final = "TOWPATH_LOG_FORMAT"
GROUP: Final = "towpath.commands"


class KnownCommand(NamedTuple):
    """A command of one of our packages; a dot separates its group from its name."""

    name: str
    package: str
    help: str = ""


_RELAY: Final = "towpath-relay"
_SINKS: Final = "towpath-sinks"
_INBOX: Final = "towpath-inbox"
_OUTBOX: Final = "towpath-outbox"
_DEPLOY: Final = "towpath-deploy"
# In the order of --help. Commands of other packages follow.
KNOWN: Final = (
    KnownCommand("up", _DEPLOY, "Start the local stack, or repair what is down."),
    KnownCommand("down", _DEPLOY, "Stop the local stack; its data is kept."),
    KnownCommand("status", _DEPLOY, "Show parts, relay and sinks, and what is wrong."),
    KnownCommand("logs", _DEPLOY, "Show what a part has printed."),
    KnownCommand(
        "config",
        _DEPLOY,
        "Check or show the configuration, or convert one from a Debezium connector.",
    ),
    KnownCommand("relay", _RELAY, "Set up the source; run the relay; show its status."),
    KnownCommand("outbox", _RELAY, "Remove old, published events from the outbox."),
    KnownCommand("sink.run", _SINKS, "Run sinks in one driver until stopped."),
    KnownCommand("sink.list", _DEPLOY, "List the sinks: state, lag, dead letters."),
    KnownCommand("sink.check", _SINKS, "Check sinks against tables and targets."),
    KnownCommand("sink.fetch-jars", _SINKS, "Fetch the engine's Java archives."),
    KnownCommand("sink.add", _DEPLOY, "Add a sink while everything runs, and fill it."),
    KnownCommand("sink.refill", _DEPLOY, "Read all existing rows into a sink again."),
    KnownCommand("sink.drop", _DEPLOY, "Drop a sink, its state and its topics."),
    KnownCommand("sink.rebuild", _DEPLOY, "Rebuild a search sink's indexes."),
    KnownCommand("snapshot", _DEPLOY, "Fill sinks from existing rows."),
    KnownCommand(
        "verify", _SINKS, "Compare every key and column of a sink with the source."
    ),
    KnownCommand("wait", _SINKS, "Wait until a sink has applied a commit."),
    KnownCommand(
        "dead-letters",
        _SINKS,
        "List, show, replay or discard what a sink could not apply.",
    ),
    KnownCommand("schema.freeze", _OUTBOX, "Freeze event schemas as released."),
    KnownCommand(
        "schema.check",
        _OUTBOX,
        "Check that event schemas are frozen, numbered and compatible.",
    ),
    KnownCommand("schema.catalogue", _OUTBOX, "Write a page of all events."),
    KnownCommand(
        "schema.contract", _SINKS, "Check a migration against row topics and sinks."
    ),
    KnownCommand(
        "inbox", _INBOX, "Create an inbox; list, replay or drop parked events."
    ),
    KnownCommand(
        "console", _DEPLOY, "Serve a web page that shows and controls the platform."
    ),
    KnownCommand(
        "doctor", _DEPLOY, "Check source, broker, registry, sinks and machine."
    ),
    KnownCommand("trace", _DEPLOY, "Trace one row or aggregate to every sink."),
    KnownCommand("replay", _DEPLOY, "Have one sink read a row or aggregate again."),
    KnownCommand(
        "demo", _DEPLOY, "Run the whole platform; prove that sinks equal the source."
    ),
    KnownCommand(
        "bench", _DEPLOY, "Benchmark against other systems, and verify the results."
    ),
    KnownCommand(
        "chaos", _DEPLOY, "Break things at random; prove that nothing is lost."
    ),
)
_GROUP_HELP: Final = {
    "sink": "Run, list and check sinks; add, refill, rebuild or drop one.",
    "schema": "Release and list event schemas; check migrations.",
}


def build(points: Iterable[EntryPoint]) -> App:
    """Return the command line of the installed commands."""
    root = App(
        name="towpath",
        help=(
            "Publish events and row changes from Postgres; keep sinks equal to it.\n\n"
            "--log-format human|json, before or after any command, sets the format of "
            "its log records [human on a terminal, else json]."
        ),
        version_flags=["--version"],
        version=lambda: version("towpath-cli"),
        result_action="return_value",
        error_formatter=_format_error,
    )
    ranks = {known.name: rank for rank, known in enumerate(KNOWN)}
    for point in sorted(points, key=lambda p: (ranks.get(p.name, len(ranks)), p.name)):
        group, _, name = point.name.rpartition(".")
        if group and group not in root:
            root.command(App(name=group, help=_GROUP_HELP.get(group, "")))
        rank = ranks.get(point.name)
        text = KNOWN[rank].help if rank is not None else ""
        parent = root[group] if group else root
        # If there is no help text here, the command is imported to get its own text.
        parent.command(point.value, name=name, **({"help": text} if text else {}))
    return root


def _format_error(error: CycloptsError) -> object:
    """Return the panel for a usage error, without importing any command."""
    if isinstance(error, UnknownCommandError) and error.app is not None:
        error.app = _without_implementations(error.app)
    return CycloptsPanel(error)


def _without_implementations(group: App) -> App:
    """Return a group whose commands have the same names and do nothing."""
    names = App()
    for name in group:
        if not name.startswith("-"):
            names.command(App(name=name))
    return names


def missing_command(arguments: list[str], root: App) -> KnownCommand | None:
    """Return the known command that was given, if its package is not installed."""
    given = [argument for argument in arguments if not argument.startswith("-")]
    for known in KNOWN:
        names = known.name.split(".")
        if given[: len(names)] == names and not _has(root, names):
            return known
    return None


def _has(root: App, names: list[str]) -> bool:
    group = root
    for name in names[:-1]:
        if name not in group:
            return False
        group = group[name]
    return names[-1] in group


app = build(entry_points(group=GROUP))


def main() -> None:
    """Run the command line and end the process with its exit code."""
    _open_closed_streams()
    sys.exit(run(sys.argv[1:]))


def _open_closed_streams() -> None:
    """
    Open each standard stream that was closed (``>&-``) as the null device.

    Otherwise a connection could get the stream's descriptor, and a library could print
    into the connection.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = _run(arguments)
        # Flush here, so that a closed pipe does not raise when the interpreter exits.
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_has_exited():
            raise
        _discard_output()
        return READER_GONE
    return code


def _without_log_format(arguments: list[str]) -> list[str]:
    """
    Move ``--log-format`` into the environment, which child processes inherit.

    Raises:
        UsageError: It has no value.
    """
    kept = []
    rest = iter(arguments)
    for argument in rest:
        name, is_joined, value = argument.partition("=")
        if name != _LOG_FORMAT:
            kept.append(argument)
        elif named := value if is_joined else next(rest, ""):
            os.environ[FORMAT_VARIABLE] = named  # noqa: TID251 - a root
        else:
            from towpath.schemas.failure import UsageError  # noqa: PLC0415 - as below

            message = f"{_LOG_FORMAT} has no value: give human or json"
            raise UsageError(message)
    return kept


def _reader_has_exited() -> bool:
    """Return whether the broken pipe is standard output, and not some other pipe."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _discard_output() -> None:
    """Discard the rest of the output: its reader, such as head, has exited."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stdout.fileno())
    os.close(null_device)


def _run(arguments: list[str]) -> int:
    try:
        arguments = _without_log_format(arguments)
        if (missing := missing_command(arguments, app)) is not None:
            return _print_missing(missing)
        result = app(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as leaving:
        if leaving.code is None:
            return 0
        return leaving.code if isinstance(leaving.code, int) else 2
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - others are re-raised
        return _print_failure(error)
    return result if isinstance(result, int) else 0


def _print_missing(missing: KnownCommand) -> int:
    name = missing.name.replace(".", " ")
    print(
        f"error: towpath {name} belongs to {missing.package}, which is not installed\n"
        f"remedy: Run pip install {missing.package}.",
        file=sys.stderr,
    )
    return 2


def _print_failure(error: Exception) -> int:
    """Print a failure of the platform with its remedy; re-raise any other error."""
    from towpath.schemas.failure import (  # noqa: PLC0415 - keeps --help fast
        TooManyFilesError,
        TowpathError,
        has_no_descriptor,
    )

    if not isinstance(error, TowpathError):
        if not has_no_descriptor(error):
            raise error
        error = TooManyFilesError("running the command")
    print(f"error: {error}\nremedy: {error.remedy}", file=sys.stderr)
    return error.exit_code
