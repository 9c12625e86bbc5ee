"""A service of the shop as a process for one test."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests
from sqlalchemy import create_engine, text

from support.stopping import stop
from support.waiting import stretched
from towpath.deploy.local import ports
from towpath.schemas import source_tables
from towpath.schemas.clock import Deadline, SystemClock

START_TIMEOUT_S = stretched(30.0)
STOP_TIMEOUT_S = stretched(15.0)


def environment_with_support(**more: str) -> dict[str, str]:
    """Return this process's environment, extended so that ``support`` is importable."""
    inherited = dict(os.environ)  # noqa: TID251 - a process of the test inherits it
    paths = [str(Path(__file__).parents[1]), inherited.get("PYTHONPATH", "")]
    search_path = os.pathsep.join(filter(None, paths))
    return {**inherited, "PYTHONPATH": search_path, **more}


@dataclass
class Service:
    """A running service: its address, its process and its log."""

    url: str
    process: subprocess.Popen[bytes]
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
    command = [sys.executable, "-m", module]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command + [text for option in given.items() for text in option],
            stdout=output,
            stderr=output,
            env=environment_with_support(),
        )
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
