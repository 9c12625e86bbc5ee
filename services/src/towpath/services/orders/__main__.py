"""
The orders service as a process: ``serve`` (the default), ``migrate`` or ``seed``.

``serve`` migrates the tables, registers the event schemas and then listens. Every
option has an environment variable: ``SHOP_DSN``, ``SHOP_REGISTRY``, ``SHOP_HOST``,
``SHOP_PORT``, ``SHOP_THREADS``.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import structlog
from sqlalchemy import Engine

from towpath.schemas.clock import Backoff, Deadline, SystemClock
from towpath.schemas.failure import TowpathError, UnavailableError
from towpath.services.orders.app import DEFAULT_THREADS, create_app, migrate_shop
from towpath.services.orders.events import shop_schemas
from towpath.services.orders.repository import has_orders, seed_shop
from towpath.services.plumbing.database import make_engine
from towpath.services.plumbing.server import Listen, configure_logs, serve
from towpath.services.registry import register_event_schemas

# The longest wait for the database and the registry when everything starts at once.
START_TIMEOUT_S: Final = 60.0

log = structlog.get_logger("towpath.services.orders")


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command given on the command line; return the exit code."""
    options = _parser(environ).parse_args(arguments)
    configure_logs()
    try:
        _COMMANDS[options.command](options)
    except TowpathError as error:
        log.error("service stopped", reason=str(error), remedy=error.remedy)  # noqa: TRY400
        return error.exit_code
    return 0


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="orders", description=__doc__)
    add = parser.add_argument
    add("command", nargs="?", choices=list(_COMMANDS), default="serve")
    dsn = environ.get("SHOP_DSN")
    add("--dsn", default=dsn, required=dsn is None, help="the shop's database")
    add(
        "--registry",
        default=environ.get("SHOP_REGISTRY"),
        help="the schema registry's URL, if any",
    )
    add("--host", default=environ.get("SHOP_HOST", "127.0.0.1"))
    add("--port", type=int, default=environ.get("SHOP_PORT", "8080"))
    threads = environ.get("SHOP_THREADS", str(DEFAULT_THREADS))
    add("--threads", type=int, default=threads, help="requests served at once")
    add("--orders", type=int, default=50_000, help="how many orders seed places")
    add("--customers", type=int, default=5_000, help="how many customers seed makes")
    add("--seed", type=int, default=1, help="a different seed gives different orders")
    add("--if-empty", action="store_true", help="seed only a shop without orders")
    return parser


def _serve(options: argparse.Namespace) -> None:
    _migrate(options)
    if options.registry is None:
        log.warning("schema registry not configured: event schemas are not registered")
    else:
        clock = SystemClock()
        register_event_schemas(
            options.registry,
            shop_schemas().history,
            clock=clock,
            timeout_s=START_TIMEOUT_S,
        )
    listen = Listen(host=options.host, port=options.port, threads=options.threads)
    log.info("service starts", host=listen.host, port=listen.port)
    serve(lambda: create_app(options.dsn, threads=options.threads), listen)


def _migrate(options: argparse.Namespace) -> None:
    clock = SystemClock()
    deadline = Deadline(clock, START_TIMEOUT_S)
    attempt = 0
    while True:
        try:
            with closing_engine(options.dsn) as engine:
                migrate_shop(engine)
        except UnavailableError as error:
            if deadline.passed():
                raise
            log.info("database unavailable: trying again", reason=str(error))
            clock.wait(min(Backoff().delay_s(attempt), deadline.remaining_s()))
            attempt += 1
        else:
            log.info("service tables are up to date")
            return


def _seed(options: argparse.Namespace) -> None:
    with closing_engine(options.dsn) as engine:
        migrate_shop(engine)
        if options.if_empty and has_orders(engine):
            log.info("shop has orders: not seeded")
            return
        seed_shop(
            engine,
            orders=options.orders,
            customers=options.customers,
            seed=options.seed,
        )
    log.info("shop seeded", orders=options.orders, customers=options.customers)


@contextmanager
def closing_engine(dsn: str) -> Iterator[Engine]:
    """Yield an engine for one connection, and close it at the end."""
    engine = make_engine(dsn, pool_size=1)
    try:
        yield engine
    finally:
        engine.dispose()


_COMMANDS: Final = {"serve": _serve, "migrate": _migrate, "seed": _seed}

if __name__ == "__main__":
    # Only the root reads the environment.
    sys.exit(main(sys.argv[1:], os.environ))  # noqa: TID251
