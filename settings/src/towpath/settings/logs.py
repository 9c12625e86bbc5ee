"""
Log records of every process, on standard error: for people, or as JSON lines.

A terminal gets lines for people, anything else JSON. ``TOWPATH_LOG_FORMAT``, which the
command's ``--log-format`` sets, selects ``human`` or ``json`` explicitly. Every JSON
line has ``at``, ``level``, ``logger`` and ``event``. An event is lower-case prose;
facts are fields. Payloads, credentials and keys are never fields, but the text of an
error may quote a value. Log records, warnings and uncaught exceptions of libraries have
the same form.
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
_CAPTURED: Final = "library log record"


class _Output(io.TextIOBase):
    """
    Standard error, which may fail: a full disk, or a reader that has exited.

    A record that cannot be written must not end the thread that logs it. A record with
    the number of failures follows once writing is possible again.
    """

    def __init__(self) -> None:
        self._line: list[str] = []
        self._failures = 0

    def write(self, text: str) -> int:
        """Buffer a fragment of a line; the caller holds the lock of this output."""
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
        record = {
            "event": "log records lost: standard error could not be written to",
            "records": self._failures,
            "level": "warning",
            "at": SystemClock().now().isoformat(),
            "logger": "towpath",
        }
        return json.dumps(record)


_OUTPUT: Final = _Output()


class _Printer(structlog.PrintLogger):
    """Prints the lines of one named logger."""

    def __init__(self, name: str) -> None:
        super().__init__(cast(TextIO, _OUTPUT))
        self.name = name


class _Forwarder(logging.Handler):
    """Forwards records of the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = record.getMessage()
        except Exception:  # noqa: BLE001 - a faulty log call must not raise
            line = str(record.msg)
        # The traceback of an error is a separate field.
        facts = {"exc_info": record.exc_info} if any(record.exc_info or ()) else {}
        structlog.get_logger(record.name).log(
            _level(record.levelno), _CAPTURED, line=line, **facts
        )


def _level(number: int) -> int:
    """Return the known level at or below a library's own; the lowest is DEBUG."""
    whole = number // logging.DEBUG * logging.DEBUG
    return min(max(whole, logging.DEBUG), logging.CRITICAL)


class LogFormat(enum.StrEnum):
    """The format of log records: lines for people, or JSON."""

    HUMAN = "human"
    JSON = "json"


def configure_logs() -> None:
    """
    Send every log record of this process to standard error.

    Raises:
        ConfigurationError: ``TOWPATH_LOG_FORMAT`` is not a known format.
    """
    is_human = _format() is LogFormat.HUMAN
    structlog.configure(
        processors=[
            # The facts that a thread binds to all of its records.
            structlog.contextvars.merge_contextvars,
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
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


def _format() -> LogFormat:
    named = os.environ.get(FORMAT_VARIABLE)  # noqa: TID251 - read where a process begins
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
    """Show positions to people as the LSN and the ordinal of the change."""
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


def _log_uncaught(
    kind: type[BaseException],
    error: BaseException,
    traceback: TracebackType | None,
) -> None:
    """Log an exception that ends the process."""
    structlog.get_logger("towpath").critical(
        "uncaught exception", exc_info=(kind, error, traceback)
    )


def _log_uncaught_in_thread(ended: threading.ExceptHookArgs) -> None:
    """Log an exception that ends a thread."""
    error = ended.exc_value or ended.exc_type()
    _log_uncaught(ended.exc_type, error, ended.exc_traceback)
