"""
Log records of relay and sinks: JSON lines on standard error.

Every line has ``at``, ``level``, ``logger`` and ``event``: lower-case prose, with facts
as fields. Payloads, credentials and keys are never fields. What libraries log, warn of
or let escape comes as such a line too.
"""

import io
import json
import logging
import sys
import threading
from types import TracebackType
from typing import Any, Final, TextIO, cast

import structlog

from towpath.schemas.clock import SystemClock

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
        except OSError:
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


def configure_logs() -> None:
    """Send every log record of this process to standard error."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            _name,
            _without_locals,
            structlog.processors.JSONRenderer(),
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


def _printer(*names: object) -> _Printer:
    return _Printer(str(names[0]) if names else "towpath")


def _name(
    logger: Any,  # noqa: ANN401 - structlog's
    _method: str,
    event: structlog.typing.EventDict,
) -> structlog.typing.EventDict:
    event["logger"] = getattr(logger, "name", "towpath")
    return event


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
