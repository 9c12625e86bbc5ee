"""
Log records of every process, on standard error: for people, or as JSON lines.

A terminal gets lines that people read, anything else JSON; ``TOWPATH_LOG_FORMAT`` (and
``--log-format`` of the command, which sets it) says ``human`` or ``json`` instead.
Every JSON line has ``at``, ``level``, ``logger`` and ``event``: lower-case prose, with
facts as fields. Payloads, credentials and keys are never fields. What libraries log,
warn of or let escape comes as such a line too.
"""

import contextlib
import enum
import io
import json
import logging
import os
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, TextIO, cast

import structlog

from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import ConfigurationError
from towpath.schemas.position import READ_ORDINAL, format_lsn, parse_position

FORMAT_VARIABLE: Final = "TOWPATH_LOG_FORMAT"

# A frame's local variables may be payloads or credentials.
_without_locals: Final = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)
_CAPTURED: Final = "captured by the standard library's logging"


class _Output(io.TextIOBase):
    """
    Standard error, which may not be writable: its disk is full, or its reader gone.

    A record that cannot be written must not end the thread that logs it. The failures
    are counted in a record of their own once writing is possible again.
    """

    def __init__(self) -> None:
        self._line: list[str] = []
        self._failures = 0

    def write(self, text: str) -> int:
        """Take a piece of a line; the caller holds the lock of this output."""
        self._line.append(text)
        return len(text)

    def flush(self) -> None:
        """Write the line."""
        line = "".join(self._line)
        self._line.clear()
        try:
            if self._failures:
                sys.stderr.write(f"{self._notice()}\n")
            sys.stderr.write(line)
            sys.stderr.flush()
            self._failures = 0
        except (OSError, ValueError):
            self._failures += 1

    def _notice(self) -> str:
        told = {
            "event": "log records lost: standard error could not be written",
            "records": self._failures,
            "level": "warning",
            "at": SystemClock().now().isoformat(),
            "logger": "towpath",
        }
        return json.dumps(told)


_OUTPUT: Final = _Output()


class _Printer(structlog.PrintLogger):
    """Prints lines, and knows by which name it was asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(cast(TextIO, _OUTPUT))
        self.name = name


class _Forwarder(logging.Handler):
    """Passes on what libraries log by the standard library's means."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = record.getMessage()
        except (TypeError, ValueError):
            line = str(record.msg)
        structlog.get_logger(record.name).log(
            max(record.levelno, logging.DEBUG), _CAPTURED, line=line
        )


class LogFormat(enum.StrEnum):
    """How log records are written: as lines for people, or as JSON."""

    HUMAN = "human"
    JSON = "json"


def configure_logs() -> None:
    """
    Send every log record of this process to standard error.

    Raises:
        ConfigurationError: ``TOWPATH_LOG_FORMAT`` names no format.
    """
    is_human = _format() is LogFormat.HUMAN
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            *(_for_people() if is_human else _for_programs()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=_printer,
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers = [_Forwarder()]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    sys.excepthook = _tell
    threading.excepthook = _tell_of_thread


def _format() -> LogFormat:
    named = os.environ.get(FORMAT_VARIABLE)  # noqa: TID251 - asked where a process begins
    if named is None:
        return LogFormat.HUMAN if sys.stderr.isatty() else LogFormat.JSON
    try:
        return LogFormat(named)
    except ValueError:
        known = " or ".join(LogFormat)
        mistake = f"{FORMAT_VARIABLE}: must be {known}, not {named!r}"
        raise ConfigurationError([mistake]) from None


def _printer(*names: object) -> _Printer:
    return _Printer(str(names[0]) if names else "towpath")


def _name(
    logger: Any,  # noqa: ANN401 - structlog's
    _method: str,
    event: structlog.typing.EventDict,
) -> structlog.typing.EventDict:
    event["logger"] = getattr(logger, "name", "towpath")
    return event


def _with_lsn(
    _logger: Any,  # noqa: ANN401 - structlog's
    _method: str,
    event: structlog.typing.EventDict,
) -> structlog.typing.EventDict:
    """Write positions as people know them: the log's address and the change's index."""
    for name, value in event.items():
        if isinstance(value, str) and name != "event":
            with contextlib.suppress(ValueError):
                log_lsn, ordinal = parse_position(value)
                index = "" if ordinal == READ_ORDINAL else f" #{ordinal}"
                event[name] = f"{format_lsn(log_lsn)}{index}"
    return event


def _for_programs() -> Sequence[structlog.typing.Processor]:
    return (
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        _name,
        _without_locals,
        structlog.processors.JSONRenderer(),
    )


def _for_people() -> Sequence[structlog.typing.Processor]:
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(),
        # Without the local variables, as in JSON.
        exception_formatter=structlog.dev.plain_traceback,
    )
    return (
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
        _with_lsn,
        renderer,
    )


def _tell(
    kind: type[BaseException],
    error: BaseException,
    traceback: TracebackType | None,
) -> None:
    """Tell of an exception that ends the process."""
    structlog.get_logger("towpath").critical(
        "unexpected failure", exc_info=(kind, error, traceback)
    )


def _tell_of_thread(ended: threading.ExceptHookArgs) -> None:
    """Tell of an exception that ends a thread."""
    error = ended.exc_value or ended.exc_type()
    _tell(ended.exc_type, error, ended.exc_traceback)
