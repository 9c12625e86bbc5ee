"""The orders service as a process of a test's own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests
from sqlalchemy import create_engine, text

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
    process: subprocess.Popen[bytes]
    log: Path

    def wait_until_live(self) -> None:
        """Wait until the service answers."""
        clock = SystemClock()
        deadline = Deadline(clock, START_TIMEOUT_S)
        while not self._answers():
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

    def _answers(self) -> bool:
        try:
            return requests.get(self.url + "/health/live", timeout=3).ok
        except requests.ConnectionError:
            return False


@contextmanager
def orders_service(
    dsn: str, folder: Path, registry_url: str | None = None
) -> Iterator[Service]:
    """Provide a service over an empty database, in which it gets its outbox first."""
    engine = create_engine(dsn.replace("postgresql:", "postgresql+psycopg2:", 1))
    with engine.begin() as connection:
        connection.execute(text("create schema towpath"))
        connection.execute(text(source_tables.outbox().create_statement()))
    engine.dispose()
    port = ports.any_free()
    log = folder / "log"
    options = {"--dsn": dsn, "--port": str(port)}
    if registry_url is not None:
        options["--registry"] = registry_url
    command = [sys.executable, "-m", "towpath.services.orders"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command + [word for option in options.items() for word in option],
            stdout=output,
            stderr=output,
        )
    service = Service(f"http://127.0.0.1:{port}", process, log)
    try:
        service.wait_until_live()
        yield service
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)
