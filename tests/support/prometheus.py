"""Prometheus itself, and its tool, as the development setup builds them."""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from support.stopping import stop
from towpath.deploy.local import ports
from towpath.sinks.jars.store import CLONE

MONITORING: Final = CLONE / "deploy" / "monitoring"
_PROGRAMS: Final = CLONE / ".towpath" / "prometheus" / "bin"


def program(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``."""
    path = _PROGRAMS / name
    assert path.is_file(), f"{path} is missing; make setup-dev builds it"
    return str(path)


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the tool and return its result."""
    return subprocess.run(
        [program("promtool"), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def written(path: Path, document: Any) -> Path:
    """Write a file for Prometheus: JSON is also YAML."""
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


class Server:
    """A Prometheus that scrapes pages of this host every second."""

    def __init__(self, folder: Path, targets: Mapping[str, int]) -> None:
        """
        Start the server with the project's alert rules.

        Args:
            folder: The folder of its files.
            targets: The port of each page, by the job's name.
        """
        self.port = ports.any_free()
        jobs = [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            for job, port in targets.items()
        ]
        every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        rules = [str(MONITORING / "alerts.yaml")]
        config = {"global": every, "rule_files": rules, "scrape_configs": jobs}
        options = (
            f"--config.file={written(folder / 'prometheus.yaml', config)}",
            f"--storage.tsdb.path={folder / 'samples'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        )
        with (folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [program("prometheus"), *options], stderr=log
            )

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of a response of its API; None while it is starting."""
        query = urllib.parse.urlencode(parameters)
        address = f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}"
        try:
            with urllib.request.urlopen(address, timeout=10) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                return None
            raise AssertionError(error.read().decode()) from error
        except OSError:
            return None

    def values(self, expression: str) -> list[Any]:
        """Evaluate an expression now, and return its values."""
        data = self.get("query", query=expression)
        return [] if data is None else data["result"]

    def close(self) -> None:
        """Stop the server."""
        stop(self._process, 30.0)


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, int]) -> Iterator[Server]:
    """Run a Prometheus server for the block."""
    folder.mkdir()
    server = Server(folder, targets)
    try:
        yield server
    finally:
        server.close()
