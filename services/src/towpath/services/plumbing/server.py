"""
The WSGI server: gunicorn with one worker process and threads, started from code.

One process with threads is enough, because requests wait for Postgres, not for Python.
The worker creates the application itself, after the fork, so that processes share no
connection.

On SIGTERM the service first reports that it is not ready, and keeps serving until load
balancers have had time to notice. Then it accepts no further connections, finishes the
requests in progress, and ends. SIGINT and SIGQUIT end it immediately.

``/health/live`` depends on no other system. ``/health/ready`` runs the service's own
check. A service that is being stopped is not ready.

Log records are JSON lines on standard error: lower-case prose, facts as fields. The
standard library's loggers (gunicorn's, alembic's) go through the same processors.
Payloads, credentials and keys are never fields.
"""

import logging
import math
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, ClassVar, Final, NamedTuple

import structlog
from flask import Blueprint, Flask
from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger
from gunicorn.workers.gthread import ThreadWorker

from towpath.schemas.failure import UnavailableError, log_failure
from towpath.schemas.tracing import NO_TRACER
from towpath.services.plumbing.tracing import TRACER, close_tracer

# The longest time for requests in progress when the service is stopped.
GRACEFUL_STOP_S: Final = 10
# Longer than clients with persistent connections pause between requests.
KEEP_ALIVE_S: Final = 75
# How long the server accepts connections after it has begun to report not ready.
DRAIN_S: Final = 1.0
LIFECYCLE: Final = "towpath.lifecycle"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Listen:
    """The server's address, its threads and processes, and the time to drain."""

    host: str
    port: int
    threads: int
    workers: int = 1
    drain_s: float = DRAIN_S

    @property
    def address(self) -> str:
        """Host and port as the server reads them: an IPv6 host needs brackets."""
        host = self.host.strip("[]")
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


class BackgroundTask(NamedTuple):
    """A task that a service's process repeats in a separate thread."""

    name: str
    interval_s: float
    run: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """
    The part of an application that its server drives.

    The application keeps it in ``app.extensions[LIFECYCLE]``. The server sets
    ``stopping`` on SIGTERM, repeats the ``tasks`` until then, and calls the
    ``close_callbacks`` when its worker exits, unless it is killed.
    """

    stopping: threading.Event = field(default_factory=threading.Event)
    tasks: list[BackgroundTask] = field(default_factory=list)
    close_callbacks: list[Callable[[], object]] = field(default_factory=list)

    def start_tasks(self) -> Sequence[threading.Thread]:
        """Start a thread for each task; all of them end when the service stops."""
        threads = [
            threading.Thread(
                target=self._repeat, args=(task,), name=task.name, daemon=True
            )
            for task in self.tasks
        ]
        for thread in threads:
            thread.start()
        return threads

    def _repeat(self, task: BackgroundTask) -> None:
        while not self.stopping.is_set():
            try:
                task.run()
            except Exception as error:  # noqa: BLE001 - the thread continues
                log_failure(
                    log, "service task failed: trying again", error, task=task.name
                )
            self.stopping.wait(task.interval_s)

    def close(self) -> None:
        """Call every close callback, even if others fail."""
        for callback in self.close_callbacks:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - the others follow
                log_failure(log, "service cleanup failed", error)


class ServiceStoppingError(UnavailableError):
    """The service is being stopped; requests in progress are finished."""

    remedy: ClassVar[str] = "Send the request to another instance."


def health_blueprint(check: Callable[[], None], stopping: threading.Event) -> Blueprint:
    """
    Return the two routes for health checks.

    Args:
        check: Raises UnavailableError if the service cannot serve requests.
        stopping: Set once the service is being stopped.
    """
    blueprint = Blueprint("health", __name__, url_prefix="/health")

    @blueprint.get("/live")
    def live() -> dict[str, str]:
        """Report that the process is serving."""
        return {"status": "live"}

    @blueprint.get("/ready")
    def ready() -> dict[str, str]:
        """Report whether the service can serve requests."""
        if stopping.is_set():
            message = "The service is being stopped."
            raise ServiceStoppingError(message)
        check()
        return {"status": "ready"}

    return blueprint


class _RootLogger(Logger):  # type: ignore[misc]  # gunicorn has no types
    """A logger that passes gunicorn's records to the process's own handlers."""

    def setup(self, cfg: Any) -> None:  # noqa: ANN401 - gunicorn has no types
        self.cfg = cfg
        self._access_log_enabled = False
        self.error_log.propagate = True


class _Worker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """A worker that reports itself not ready before it stops accepting connections."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        app = self.app.callable
        if app is None:
            super().handle_exit(sig, frame)
            return
        stopping: threading.Event = app.extensions[LIFECYCLE].stopping
        if not stopping.is_set():
            stopping.set()
            end = threading.Timer(
                self.app.listen.drain_s, super().handle_exit, (sig, frame)
            )
            end.daemon = True
            end.start()


def _close(_arbiter: object, worker: _Worker) -> None:
    """Call the close callbacks of a worker that is exiting; export its last spans."""
    app = worker.app.callable
    if app is not None:
        app.extensions[LIFECYCLE].close()
        close_tracer(app.extensions.get(TRACER, NO_TRACER))


class _Server(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    def __init__(self, make_app: Callable[[], Flask], listen: Listen) -> None:
        self._make_app = make_app
        self.listen = listen
        super().__init__()

    def load_config(self) -> None:
        options = {
            "bind": self.listen.address,
            "workers": self.listen.workers,
            "threads": self.listen.threads,
            "worker_class": _Worker,
            "graceful_timeout": GRACEFUL_STOP_S + math.ceil(self.listen.drain_s),
            "keepalive": KEEP_ALIVE_S,
            "logger_class": _RootLogger,
            "control_socket_disable": True,
            "proc_name": "towpath-shop",
            "worker_exit": _close,
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        app = self._make_app()
        app.extensions[LIFECYCLE].start_tasks()
        return app


def serve(make_app: Callable[[], Flask], listen: Listen) -> None:
    """
    Serve until the process is stopped; requests in progress are finished.

    Args:
        make_app: Creates the application, with its ``Lifecycle``, in the worker.
        listen: The address and the number of threads.
    """
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
    # The service logs the migration itself.
    logging.getLogger("alembic").setLevel(logging.WARNING)
