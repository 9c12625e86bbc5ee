"""
A service as a process and as an application, from a declaration of its parts.

The commands are ``serve`` (the default), ``migrate``, ``consume``, and the service's
own. ``serve`` migrates the tables, registers the event schemas and then listens;
it waits while the database or the registry is starting. A command that is given
``--admin-dsn`` first creates the role of ``--dsn``. Every option with a value has an
environment variable with the service's prefix, such as::

    --dsn                 <PREFIX>_DSN
    --admin-dsn           <PREFIX>_ADMIN_DSN
    --registry            <PREFIX>_REGISTRY
    --host                <PREFIX>_HOST
    --port                <PREFIX>_PORT
    --threads             <PREFIX>_THREADS
    --drain-seconds       <PREFIX>_DRAIN_SECONDS
    --idempotency-hours   <PREFIX>_IDEMPOTENCY_HOURS
    --metrics-port        <PREFIX>_METRICS_PORT

A service that consumes other services' events does so while it serves, if ``--kafka``
is given. With ``consume`` it consumes them in a separate process; several
such processes share the partitions of the topics. ``--topic-prefix`` and
``--group-prefix`` apply to both.

A service without a database of its own has only ``serve``, and none of the options for
database, registry, idempotency and brokers.
"""

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import structlog
from flask import Flask, Response, current_app
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker
from werkzeug.routing import IntegerConverter, ValidationError

from towpath.inbox.status import client_settings
from towpath.outbox import plain
from towpath.schemas.clock import Backoff, Clock, Deadline, SystemClock
from towpath.schemas.events import EventSchemas
from towpath.schemas.failure import TowpathError, UnavailableError, UsageError
from towpath.schemas.tracing import start_tracing
from towpath.services.plumbing.consumer import (
    TOPIC_PREFIX,
    Brokers,
    Consuming,
    check_client,
    consume,
    consuming_tasks,
)
from towpath.services.plumbing.database import (
    RefusedLoginError,
    UnitOfWork,
    create_role,
    make_engine,
    table_check,
)
from towpath.services.plumbing.http import (
    MAX_BODY_BYTES,
    NotFoundError,
    install_problems,
    json_response,
)
from towpath.services.plumbing.metrics import (
    METRICS,
    ServiceMetrics,
    install_metrics,
    metrics_of,
)
from towpath.services.plumbing.server import (
    DRAIN_S,
    LIFECYCLE,
    Lifecycle,
    Listen,
    configure_logs,
    health_blueprint,
    serve,
)
from towpath.services.plumbing.tracing import (
    TRACER,
    install_request_context,
    warn_of_lost_spans,
)
from towpath.services.registry import register_event_schemas

# The longest wait for a database and a registry that start with the service.
START_TIMEOUT_S: Final = 60.0
DEFAULT_THREADS: Final = 8
IDEMPOTENCY_HOURS: Final = 24.0
_LONGEST_S: Final = 600.0
# A year.
_MAX_IDEMPOTENCY_HOURS: Final = 24.0 * 366
_MAX_INTEGER: Final = 2**31 - 1
_MAX_BIGINT: Final = 2**63 - 1
_MAX_PORT: Final = 65_535

log = structlog.get_logger(__name__)


class BigintConverter(IntegerConverter):
    """A number in a path; a path whose number exceeds a Postgres bigint is a 404."""

    def to_python(self, value: str) -> int:
        # A bigint has at most 19 digits; Python refuses to parse thousands of digits.
        if len(value) > len(str(_MAX_BIGINT)) or int(value) > _MAX_BIGINT:
            raise ValidationError
        return int(value)


def base_app(name: str, engine: Engine, tables: Sequence[str]) -> Flask:
    """
    Create an application that has a database, but no routes of its own yet.

    Args:
        name: The application's name.
        engine: The service's database.
        tables: Qualified names of tables without which the service is not ready.
    """
    app = app_without_database(name, table_check(engine, tables))
    app.extensions["engine"] = engine
    return app


def app_without_database(name: str, check: Callable[[], None]) -> Flask:
    """
    Create an application with the parts that all services share.

    These are problem documents, request ids, health checks, metrics, the limit on the
    size of a body, and the path converter ``bigint``.

    Args:
        name: The application's name.
        check: Raises UnavailableError if the service is not ready.
    """
    app = Flask(name, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.url_map.converters["bigint"] = BigintConverter
    lifecycle = Lifecycle()
    app.extensions[LIFECYCLE] = lifecycle
    app.extensions[METRICS] = ServiceMetrics()
    install_request_context(app)
    install_problems(app)
    app.register_blueprint(health_blueprint(check, lifecycle.stopping))
    return app


class OrderAggregates(Protocol):
    """Reads a service's aggregates, each of which belongs to an order."""

    def find(self, order_id: int) -> Any | None:  # noqa: ANN401 - the service's own
        """Read the aggregate of an order, a dataclass with its new ``events``."""


def response_by_order(
    repository: Callable[[Session], OrderAggregates], noun: str, order_id: int
) -> Response:
    """
    Return the response with an order's aggregate, from the application's database.

    Args:
        repository: Makes the repository of a transaction.
        noun: The aggregate's name in the error text.
        order_id: The order.

    Raises:
        NotFoundError: The order has no such aggregate.
    """
    with UnitOfWork(sessionmaker(current_app.extensions["engine"])) as unit:
        found = repository(unit.session).find(order_id)
    if found is None:
        message = f"There is no {noun} for order {order_id}."
        raise NotFoundError(message)
    document: dict[str, Any] = dataclasses.asdict(found)
    del document["events"]
    return json_response(HTTPStatus.OK, plain(document))


class MissingBrokersError(UsageError):
    """The command ``consume`` was given no brokers."""

    remedy: ClassVar[str] = "Name them with --kafka, or with the variable ..._KAFKA."


class _Parser(argparse.ArgumentParser):
    """A parser whose options take their defaults from the environment."""

    def __init__(
        self, prefix: str, environ: Mapping[str, str], name: str, description: str
    ) -> None:
        self._prefix = prefix
        self._environ = environ
        super().__init__(prog=name, description=description)

    def add_argument(self, *names: str, **given: Any) -> argparse.Action:  # noqa: ANN401 - argparse's
        """Add an argument; an option's variable replaces its default."""
        option = names[0].removeprefix("--").upper().replace("-", "_")
        value = self._environ.get(f"{self._prefix}_{option}")
        has_value = names[0].startswith("--") and "action" not in given
        if has_value and value is not None:
            given = {**given, "default": value, "required": False}
        return super().add_argument(*names, **given)


def _add_event_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    help_ = "how long an Idempotency-Key is kept"
    add("--idempotency-hours", type=hours, default=IDEMPOTENCY_HOURS, help=help_)
    add("--kafka", help="the brokers; if given, serve also consumes events")
    help_ = (
        "a file of name=value lines with settings for the Kafka client, such as a login"
    )
    add("--kafka-file", type=Path, help=help_)
    help_ = "the prefix of the event topics' names, as in the relay"
    add("--topic-prefix", default=TOPIC_PREFIX, help=help_)
    add("--group-prefix", default="", help="the prefix of the consumer group's name")
    help_ = "the port for the metrics of consume; serve exposes its own on its port"
    add("--metrics-port", type=port, help=help_)


AddOptions = Callable[[argparse.ArgumentParser], None]


class Command(NamedTuple):
    """A command of one service, such as ``seed``, with its options."""

    name: str
    run: Callable[[argparse.Namespace], None]
    add_options: AddOptions = lambda _parser: None


@dataclass(frozen=True, kw_only=True)
class Service:
    """
    The declaration of a service.

    Attributes:
        name: Its name on the command line and in log records.
        description: The text of ``--help``.
        prefix: The prefix of its environment variables, such as ``SHOP``.
        create_app: Wires its application from the options of ``serve``, in the process
            that serves.
        migrate: Creates or updates its tables; None if it has no database of its own.
        event_schemas: Loads the schemas of its events, if it has a database.
        consuming: Declares its consumer, for ``consume`` and for ``serve --kafka``.
        add_options: Adds its further options, which every command accepts.
        check: Refuses unusable options of ``serve``, before the process listens.
        commands: Its other commands.
    """

    name: str
    description: str
    prefix: str
    create_app: Callable[[argparse.Namespace], Flask]
    migrate: Callable[[Engine], None] | None = None
    event_schemas: Callable[[], EventSchemas] = EventSchemas
    consuming: Callable[[argparse.Namespace], Consuming] | None = None
    add_options: AddOptions = lambda _parser: None
    check: Callable[[argparse.Namespace], object] = lambda _options: None
    commands: Sequence[Command] = ()

    def main(self, arguments: Sequence[str], environ: Mapping[str, str]) -> int:
        """Run the command given on the command line; return the exit code."""
        options = self.options(arguments, environ)
        options.start_tracing = partial(
            start_tracing, f"towpath-{self.name}", environ, warn_of_lost_spans
        )
        configure_logs()
        run = self._commands()[options.command]
        try:
            if self.migrate is not None and options.admin_dsn is not None:
                self._create_role(options)
            run(options)
        except TowpathError as error:
            log.error(  # noqa: TRY400 - the reason is the message
                "service stopped",
                service=self.name,
                reason=str(error),
                remedy=error.remedy,
            )
            return error.exit_code
        return 0

    def options(
        self, arguments: Sequence[str], environ: Mapping[str, str]
    ) -> argparse.Namespace:
        """Read the options; an invalid command line exits with code 2."""
        return self.parser(environ).parse_args(arguments)

    def _commands(self) -> dict[str, Callable[[argparse.Namespace], None]]:
        found: dict[str, Callable[[argparse.Namespace], None]] = {"serve": self._serve}
        if self.migrate is not None:
            found["migrate"] = partial(self._migrate, self.migrate)
        found |= {command.name: command.run for command in self.commands}
        if self.consuming is not None:
            found["consume"] = partial(self._consume, self.consuming)
        return found

    def parser(self, environ: Mapping[str, str]) -> argparse.ArgumentParser:
        """Return its command-line parser, with defaults from environment variables."""
        parser = _Parser(self.prefix, environ, self.name, self.description)
        add = parser.add_argument
        add("command", nargs="?", choices=list(self._commands()), default="serve")
        if self.migrate is not None:
            add("--dsn", required=True, help="the service's database")
            help_ = "an administrator's login to that database, to create its role"
            add("--admin-dsn", help=help_)
            add("--registry", help="the schema registry's URL, if any")
        add("--host", default="127.0.0.1")
        add("--port", type=port, default=8080)
        help_ = "the number of concurrent requests"
        add("--threads", type=number_from(1), default=DEFAULT_THREADS, help=help_)
        help_ = "how long a stopping service still accepts requests"
        add("--drain-seconds", type=seconds, default=DRAIN_S, help=help_)
        if self.migrate is not None:
            _add_event_options(parser)
        self.add_options(parser)
        for command in self.commands:
            command.add_options(parser)
        return parser

    def _serve(self, options: argparse.Namespace) -> None:
        self.check(options)
        if self.consuming is not None and options.kafka is not None:
            # Read here to report a mistake: the worker, which reads the brokers again,
            # would report it as a traceback.
            _brokers(options)
        if self.migrate is not None:
            self._migrate(self.migrate, options)
            self._register(options)
        listen = Listen(
            host=options.host,
            port=options.port,
            threads=options.threads,
            drain_s=options.drain_seconds,
        )
        log.info(
            "service starts", service=self.name, host=listen.host, port=listen.port
        )
        serve(lambda: self._make_app(options), listen)

    def _make_app(self, options: argparse.Namespace) -> Flask:
        """Wire the application; if brokers are named, its process consumes too."""
        app = self.create_app(options)
        install_metrics(app, SystemClock())
        # Started in the worker, because its thread would not survive the fork.
        tracer = app.extensions[TRACER] = options.start_tracing()
        if self.consuming is not None and options.kafka is not None:
            lifecycle: Lifecycle = app.extensions[LIFECYCLE]
            declared = self.consuming(options)
            tasks = consuming_tasks(
                *(declared, options.dsn, _brokers(options)),
                *(lifecycle.stopping, tracer, metrics_of(app)),
            )
            lifecycle.tasks.extend(tasks)
        return app

    def _register(self, options: argparse.Namespace) -> None:
        if options.registry is None:
            log.warning(
                "schema registry not configured: event schemas are not registered"
            )
            return
        register_event_schemas(
            options.registry,
            self.event_schemas().history,
            clock=SystemClock(),
            timeout_s=START_TIMEOUT_S,
        )

    def _consume(
        self,
        declare: Callable[[argparse.Namespace], Consuming],
        options: argparse.Namespace,
    ) -> None:
        if options.kafka is None:
            message = "consume needs the brokers"
            raise MissingBrokersError(message)
        brokers = _brokers(options)
        if self.migrate is not None:
            self._migrate(self.migrate, options)
        tracer, metrics = options.start_tracing(), ServiceMetrics()
        if options.metrics_port is not None:
            metrics.listen(options.host, options.metrics_port)
        consume(declare(options), options.dsn, brokers, tracer, metrics)

    def _create_role(self, options: argparse.Namespace) -> None:
        wait_for_database(options.admin_dsn, partial(create_role, dsn=options.dsn))
        log.info("service role is up to date", service=self.name)

    def _migrate(
        self, migrate: Callable[[Engine], None], options: argparse.Namespace
    ) -> None:
        wait_for_database(options.dsn, migrate)
        log.info("service tables are up to date", service=self.name)


def number_from(minimum: int, maximum: int = _MAX_INTEGER) -> Callable[[str], int]:
    """Return a function that reads a number from ``minimum`` to ``maximum``."""

    def number(text: str) -> int:
        if not minimum <= (found := int(text)) <= maximum:
            message = f"must be from {minimum} to {maximum}"
            raise argparse.ArgumentTypeError(message)
        return found

    return number


# A seed is a bigint in SQL, and so is the number after it.
seed_number: Final = number_from(-_MAX_BIGINT, _MAX_BIGINT - 1)


def port(text: str) -> int:
    """Read a port number; 0 means any free port."""
    if not 0 <= (number := int(text)) <= _MAX_PORT:
        message = f"must be from 0 to {_MAX_PORT}"
        raise argparse.ArgumentTypeError(message)
    return number


def seconds(text: str) -> float:
    """Read a time in seconds for draining or waiting."""
    if not 0 <= (value := float(text)) <= _LONGEST_S:
        message = f"must be from 0 to {_LONGEST_S:g} seconds"
        raise argparse.ArgumentTypeError(message)
    return value


def hours(text: str) -> float:
    """Read the time in hours for which a key is kept."""
    if not 0 < (value := float(text)) <= _MAX_IDEMPOTENCY_HOURS:
        message = f"must be more than 0 and at most {_MAX_IDEMPOTENCY_HOURS:g} hours"
        raise argparse.ArgumentTypeError(message)
    return value


def _brokers(options: argparse.Namespace) -> Brokers:
    """
    Return the brokers that the options name.

    Raises:
        UsageError: No broker is named, the file of ``--kafka-file`` cannot be read, or
            the client refuses a setting.
    """
    client = client_settings(options.kafka, options.kafka_file)
    check_client(client)
    return Brokers(client, options.topic_prefix, options.group_prefix)


def wait_for_database(
    dsn: str, use: Callable[[Engine], None], clock: Clock | None = None
) -> None:
    """
    Use the database; try again while it is unavailable or the role lacks a right.

    Args:
        dsn: The database, as a libpq URI or keyword/value string.
        use: Called with an engine for one connection, perhaps several times.
        clock: Waits between attempts.

    Raises:
        RefusedLoginError: The database refuses the login; this is not retried.
        UnavailableError: The database was still unavailable, or a right was still
            missing, at the deadline.
    """
    clock = clock or SystemClock()
    deadline = Deadline(clock, START_TIMEOUT_S)
    attempt = 0
    while True:
        try:
            with closing_engine(dsn) as engine:
                use(engine)
        except UnavailableError as error:
            if deadline.passed() or isinstance(error, RefusedLoginError):
                raise
            log.info("database unavailable: trying again", reason=str(error))
            clock.wait(min(Backoff().delay_s(attempt), deadline.remaining_s()))
            attempt += 1
        else:
            return


@contextmanager
def closing_engine(dsn: str) -> Iterator[Engine]:
    """Yield an engine for one connection, and close it at the end."""
    engine = make_engine(dsn, pool_size=1)
    try:
        yield engine
    finally:
        engine.dispose()
