"""
The WSGI server: gunicorn with one worker process and threads, started from code.

One process with threads is enough, because requests wait for Postgres, not for Python.
The worker creates the application itself, after the fork, so that processes share no
connection.

Log records are JSON lines on standard error: lower-case prose, facts as fields. The
standard library's loggers (gunicorn's, alembic's) go through the same processors.
Payloads, credentials and keys are never fields.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog
from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger

# The longest time for requests in progress when the service is stopped.
GRACEFUL_STOP_S: Final = 10
# Longer than any think time of a client that keeps its connection.
KEEP_ALIVE_S: Final = 75


@dataclass(frozen=True, slots=True)
class Listen:
    """The address of the server, and the number of requests served at once."""

    host: str
    port: int
    threads: int
    workers: int = 1


class _RootLogger(Logger):  # type: ignore[misc]  # gunicorn has no types
    """Logger that passes gunicorn's records to the process's own handlers."""

    def setup(self, cfg: Any) -> None:  # noqa: ANN401 - gunicorn has no types
        self.cfg = cfg
        self._access_log_enabled = False
        self.error_log.propagate = True


class _Server(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    def __init__(self, make_app: Callable[[], Flask], listen: Listen) -> None:
        self._make_app = make_app
        self._listen = listen
        super().__init__()

    def load_config(self) -> None:
        options = {
            "bind": f"{self._listen.host}:{self._listen.port}",
            "workers": self._listen.workers,
            "threads": self._listen.threads,
            "worker_class": "gthread",
            "graceful_timeout": GRACEFUL_STOP_S,
            "keepalive": KEEP_ALIVE_S,
            "logger_class": _RootLogger,
            "control_socket_disable": True,
            "proc_name": "towpath-shop",
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        return self._make_app()


def serve(make_app: Callable[[], Flask], listen: Listen) -> None:
    """Serve until the process is stopped; requests in progress are finished."""
    _Server(make_app, listen).run()


def configure_logs(level: int = logging.INFO) -> None:
    """Send every log record of this process through structlog."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    # Start-up messages only: the migration itself is logged by the service.
    logging.getLogger("alembic").setLevel(logging.WARNING)
