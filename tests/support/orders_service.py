"""A service of the shop as a process for one test."""

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests
from sqlalchemy import create_engine, text

from support.forked import Forked, Running
from support.stopping import stop
from support.waiting import stretched
from towpath.deploy.local import ports
from towpath.schemas import source_tables
from towpath.schemas.clock import Deadline, SystemClock

START_TIMEOUT_S = stretched(30.0)
STOP_TIMEOUT_S = stretched(15.0)


@dataclass
class Service:
    """A running service: its address, its process and its log."""

    url: str
    process: Running
    log: Path

    def wait_until_live(self) -> None:
        """Wait until the service responds."""
        clock = SystemClock()
        deadline = Deadline(clock, START_TIMEOUT_S)
        while not self._responds():
            assert self.process.poll() is None, self.log.read_text()
            assert not deadline.passed(), self.log.read_text()
            clock.wait(0.05)

    def post(self, path: str, body: object) -> requests.Response:
        """Post a document."""
        return requests.post(self.url + path, json=body, timeout=10)

    def records(self) -> list[dict[str, object]]:
        """Read the log."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def _responds(self) -> bool:
        try:
            return requests.get(self.url + "/health/live", timeout=3).ok
        except (requests.ConnectionError, requests.Timeout):
            return False


@contextmanager
def running_service(
    module: str, dsn: str, folder: Path, options: Mapping[str, str] | None = None
) -> Iterator[Service]:
    """
    Provide a service on an empty database, after creating its outbox there.

    The module is run with ``python -m``, with the options of ``serve``.
    """
    engine = create_engine(dsn.replace("postgresql:", "postgresql+psycopg2:", 1))
    with engine.begin() as connection:
        connection.execute(text("create schema towpath"))
        connection.execute(text(source_tables.outbox().create_statement()))
    engine.dispose()
    with serving(module, dsn, folder, options) as service:
        yield service


@contextmanager
def serving(
    module: str, dsn: str, folder: Path, options: Mapping[str, str] | None = None
) -> Iterator[Service]:
    """Provide a service on a database that already has its outbox."""
    port = ports.any_free()
    log = folder / "log"
    # No test needs a stopping service to wait for requests that may still arrive.
    given = {"--dsn": dsn, "--port": str(port), "--drain-seconds": "0"}
    given |= options or {}
    arguments = [text for option in given.items() for text in option]
    log.unlink(missing_ok=True)
    process = Forked(["-m", module, *arguments], log)
    service = Service(f"http://127.0.0.1:{port}", process, log)
    try:
        service.wait_until_live()
        yield service
    finally:
        if process.poll() is None:
            stop(process, STOP_TIMEOUT_S)


def orders_service(
    dsn: str, folder: Path, registry_url: str | None = None
) -> AbstractContextManager[Service]:
    """Provide the orders service on an empty database."""
    options = {} if registry_url is None else {"--registry": registry_url}
    return running_service("towpath.services.orders", dsn, folder, options)
