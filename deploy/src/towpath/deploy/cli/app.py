"""
The root of the ``towpath`` command.

Commands are named by text and imported when they are said, so that ``--help`` answers
at once. Failures of ours are one sentence and its remedy on standard error; their
class says the exit code.
"""

import os
import select
import sys
from typing import Final

from cyclopts import App

INTERRUPTED: Final = 130
# As the shell tells of a program that SIGPIPE has ended.
READER_GONE: Final = 141
_LOG_FORMAT: Final = "--log-format"
# Named by logs.py too, whose import would keep --help waiting.
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
    ("status", "status:status", "Show parts, relay and sinks, and what is wrong."),
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
    ("demo", "demo:demo", "Run the whole platform and prove that it agrees."),
    ("bench", "bench:app", "Measure, side by side with others, and verify."),
    ("chaos", "chaos:app", "Break things at random; prove that nothing is lost."),
)
for _name, _place, _help in _COMMANDS:
    app.command(f"{_PACKAGE}.{_place}", name=_name, help=_help)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(words: list[str]) -> int:
    """Carry out one command and return its exit code."""
    try:
        code = _run(_without_log_format(words))
        # What is still buffered meets a closed pipe here, and not at the end of Python.
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_has_ended():
            raise
        _discard_output()
        return READER_GONE
    return code


def _without_log_format(words: list[str]) -> list[str]:
    """Take the option that every command knows; what it starts inherits it."""
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
    """Tell whether it is the output's pipe that is broken, and not another one."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _discard_output() -> None:
    """Send what is left of the output nowhere: its reader, such as head, has ended."""
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
    except Exception as error:  # noqa: BLE001 - what is not ours is raised again
        return _tell(error)
    return result if isinstance(result, int) else 0


def _tell(error: Exception) -> int:
    """Tell a failure of ours in its own words; any other is a mistake of ours."""
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
