"""
The root of the ``towpath`` command.

Commands are named by text and imported when they are run, so that ``--help`` answers
at once. A failure of the platform is printed on standard error as one sentence with its
remedy; its class decides the exit code.
"""

import os
import select
import sys
from typing import Final

from cyclopts import App

from towpath.deploy.cli.options import INTERRUPTED

# The exit code of a program that SIGPIPE ended, as a shell reports it.
READER_GONE: Final = 141
_LOG_FORMAT: Final = "--log-format"
# Named in logs.py too, whose import would slow --help down.
FORMAT_VARIABLE: Final = "TOWPATH_LOG_FORMAT"
_PACKAGE: Final = "towpath.deploy.cli"

app = App(
    name="towpath",
    help=(
        "Outbox, change stream, snapshots and sinks that agree.\n\n"
        "--log-format human|json before or behind any command says how its log records "
        "are written [human on a terminal, else json]."
    ),
    version_flags=["--version"],
    result_action="return_value",
)
_COMMANDS: Final = (
    ("up", "stack:up", "Start the local stack, or repair what is down."),
    ("down", "stack:down", "Stop the local stack; its data stays."),
    ("status", "stack:status", "Show parts, relay and sinks, and what is wrong."),
    ("logs", "stack:logs", "Show what a part has printed."),
    (
        "config",
        "config:app",
        "Check the configuration, show it whole, or make one from a connector's.",
    ),
    ("relay", "relay:app", "Set up the source, run the relay, ask how it is."),
    ("sink", "sink:app", "Run sinks, list and check them; add, refill or drop one."),
    ("snapshot", "snapshot:app", "Fill sinks from existing rows."),
    (
        "verify",
        "verify:verify",
        "Compare a sink with the source, every key and column.",
    ),
    ("wait", "verify:wait", "Wait until a sink has applied a commit."),
    (
        "dead-letters",
        "dead_letters:app",
        "List, show, replay or give up what a sink could not apply.",
    ),
    ("doctor", "doctor:doctor", "Check source and broker; tell each cure."),
    ("demo", "trials:demo", "Run the whole platform and prove that it agrees."),
    ("bench", "trials:bench_app", "Measure, side by side with others, and verify."),
    (
        "chaos",
        "trials:chaos_app",
        "Break things at random; prove that nothing is lost.",
    ),
)
for _name, _place, _help in _COMMANDS:
    app.command(f"{_PACKAGE}.{_place}", name=_name, help=_help)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(words: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = _run(_without_log_format(words))
        # A closed pipe fails here, not when the interpreter exits.
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_has_ended():
            raise
        _discard_output()
        return READER_GONE
    return code


def _without_log_format(words: list[str]) -> list[str]:
    """Remove ``--log-format``; child processes inherit its value."""
    left = []
    rest = iter(words)
    for word in rest:
        name, is_joined, value = word.partition("=")
        if name != _LOG_FORMAT:
            left.append(word)
            continue
        os.environ[FORMAT_VARIABLE] = value if is_joined else next(rest, "")  # noqa: TID251 - a root
    return left


def _reader_has_ended() -> bool:
    """Return whether the broken pipe is standard output, not another one."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _discard_output() -> None:
    """Discard the rest of the output: its reader, such as head, has ended."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _run(words: list[str]) -> int:
    try:
        result = app(words)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 2
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - others are raised again
        return _print_failure(error)
    return result if isinstance(result, int) else 0


def _print_failure(error: Exception) -> int:
    """Print a failure of the platform with its remedy; raise any other error again."""
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
