"""
The storefront as a process: ``serve``.

Every option has an environment variable, such as ``STOREFRONT_PORT`` and
``STOREFRONT_SEARCH``::

    --orders, --inventory   the base addresses of the two services
    --search, --cache       OpenSearch and Redis, which the sinks write to
    --cache-prefix          the prefix of the cache's keys
    --config                towpath.toml; without it, reads with an LSN are refused
    --wait-seconds          the longest wait of a read for an LSN
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import urlsplit

from flask import Flask
from httpx2 import URL, InvalidURL

from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.services.plumbing.openapi import install_openapi
from towpath.services.plumbing.service import (
    Service,
    app_without_database,
    seconds,
)
from towpath.services.storefront import api, pages
from towpath.services.storefront.read_side import (
    ORDERS,
    OrderCache,
    ReadSide,
    SearchIndex,
)
from towpath.services.storefront.shop import Shop
from towpath.services.storefront.waits import LsnWaiter, SinkWaits, malformed_lsn
from towpath.settings import Settings, load
from towpath.sinks.wait import UnknownLsnError, Waiter

# About as long as a person waits for a page before suspecting a fault.
WAIT_S: Final = 5.0
CACHE_PREFIX: Final = "towpath"
_KINDS: Final = ("search", "cache")


class NoOrdersSinkError(UsageError):
    """The configuration lacks a search sink or a cache sink with a route for orders."""

    remedy: ClassVar[str] = "Add a route named orders to a sink of that kind."


def make_waits(
    settings: Settings, clock: SystemClock, timeout_s: float = WAIT_S
) -> SinkWaits:
    """
    Make the waits for the sinks that have the orders.

    Args:
        settings: The configuration of the sinks.
        clock: Measures the waits.
        timeout_s: The longest wait of a read.

    Raises:
        NoOrdersSinkError: No search sink, or no cache sink, has the orders.
    """
    sinks = {kind: _sink_of(settings, kind) for kind in _KINDS}
    return SinkWaits(partial(_LsnWaiter, settings), sinks, clock, timeout_s)


class _LsnWaiter(LsnWaiter):
    """Waits for sinks; an LSN that they can never reach is the client's mistake."""

    def __init__(self, settings: Settings) -> None:
        self._waiter = Waiter(settings)

    def wait_for(self, lsn: str, sink: str, timeout_s: float) -> object:
        try:
            return self._waiter.wait_for(lsn, sink, timeout_s)
        except UnknownLsnError as error:
            raise malformed_lsn(str(error)) from error

    def close(self) -> None:
        self._waiter.close()


def _sink_of(settings: Settings, kind: str) -> str:
    for sink in settings.sink:
        if sink.kind == kind and ORDERS in [route.name for route in sink.route]:
            return sink.name
    message = f"No sink of the kind {kind} has a route named {ORDERS}."
    raise NoOrdersSinkError(message)


def create_app(shop: Shop, reads: ReadSide) -> Flask:
    """
    Wire the storefront; no connection is opened before a request.

    Args:
        shop: Calls the services.
        reads: Reads the targets of the sinks.
    """
    app = app_without_database("towpath-storefront", reads.check)
    app.extensions[api.EXTENSION] = reads
    app.extensions[pages.EXTENSION] = pages.PageContext(shop, reads, SystemClock())
    app.register_blueprint(api.blueprint)
    app.register_blueprint(pages.blueprint)
    install_openapi(app, "Storefront", api.operations, pages=[pages.blueprint.name])
    return app


def waits_of(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> SinkWaits | None:
    """
    Make the waits from the options of ``serve``; None without a configuration.

    Args:
        options: The options.
        environ: Overrides of the configuration.

    Raises:
        UsageError: The configuration cannot be used.
    """
    if options.config is None:
        return None
    settings = load(options.config, environ)
    return make_waits(settings, SystemClock(), options.wait_seconds)


def _app_of(options: argparse.Namespace, waits: SinkWaits | None) -> Flask:
    """
    Wire the storefront according to the options of ``serve``.

    Raises:
        UsageError: An address cannot be read.
    """
    for option in ("orders", "inventory"):
        with _parsing(option, "http://localhost:8080"):
            url = getattr(options, option)
            if URL(url).scheme not in ("http", "https"):
                raise InvalidURL(option)
            _check_host(url)
    shop = Shop(options.orders, options.inventory)
    with _parsing("search", "http://localhost:9200"):
        _check_host(options.search)
        search = SearchIndex(options.search)
    with _parsing("cache", "redis://localhost:6379"):
        _check_host(options.cache)
        cache = OrderCache(options.cache, options.cache_prefix)
    return create_app(shop, ReadSide(search, cache, waits))


def _check_host(url: str) -> None:
    """Raise a ``ValueError`` for a host name that cannot be looked up, such as a..b."""
    # The clients do this only when they connect, and do not wrap the error.
    (urlsplit(url).hostname or "").encode("idna")


@contextmanager
def _parsing(option: str, example: str) -> Iterator[None]:
    """Turn a parsing error into a usage error, which quotes no password."""
    try:
        yield
    except (TypeError, ValueError, InvalidURL) as error:
        message = f"--{option} is not a URL such as {example}"
        raise UsageError(message) from error


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--orders", required=True, help="the base URL of the orders service")
    add("--inventory", required=True, help="the base URL of the inventory service")
    add("--search", required=True, help="the URL of OpenSearch")
    add("--cache", required=True, help="the URL of Redis")
    help_ = "the prefix of the cache's keys: the prefix of the source"
    add("--cache-prefix", default=CACHE_PREFIX, help=help_)
    help_ = "towpath.toml; without it, reads with an LSN are refused"
    add("--config", type=Path, help=help_)
    help_ = "the longest wait of a read for an LSN"
    add("--wait-seconds", type=seconds, default=WAIT_S, help=help_)


def declare(environ: Mapping[str, str]) -> Service:
    """Declare the service; the environment also overrides its configuration."""
    return Service(
        name="storefront",
        description=__doc__ or "",
        prefix="STOREFRONT",
        create_app=lambda options: _app_of(options, waits_of(options, environ)),
        add_options=_add_options,
        check=lambda options: _app_of(options, waits_of(options, environ)),
    )


def main(arguments: list[str], environ: Mapping[str, str]) -> int:
    """Run the command given on the command line; return the exit code."""
    return declare(environ).main(arguments, environ)


if __name__ == "__main__":
    # Only entry points read the environment.
    sys.exit(main(sys.argv[1:], os.environ))  # noqa: TID251
