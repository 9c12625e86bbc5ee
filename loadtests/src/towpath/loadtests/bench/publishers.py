"""
The systems that write to Kafka: the relay, and Debezium on Kafka Connect.

Each reads an existing slot and publishes to ``<name>.event.bench``, keyed by aggregate
id, with the event's id and type as headers. The relay adds three headers, Debezium four
of its own; in one case Debezium sends five like the relay's. Debezium runs with its
default settings, and tuned: for throughput in a drain, for latency under a steady load.

A client program runs alongside a system, and is killed at the end of a ``with`` block.
"""

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

import psutil
from psycopg.conninfo import conninfo_to_dict

from towpath.loadtests.bench.broker import PARTITIONS
from towpath.loadtests.bench.context import (
    DEBEZIUM_TUNED,
    RELAY,
    Bench,
    BenchRun,
    Tuning,
)
from towpath.loadtests.bench.environment import BenchEnvironment
from towpath.loadtests.bench.source import PUBLICATION
from towpath.loadtests.errors import BenchError

_PLACEMENT: Final = "transforms.outbox.table.fields.additional.placement"
# Five headers like the relay's, of about the same size: id, type, aggregate type and
# time are equal, and the aggregate id takes the place of the position. Debezium's own
# four headers, about its connector, are turned off.
_SAME_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        _PLACEMENT: "type:header,aggregate_type:header,occurred_at:header,"
        "aggregate_id:header:position",
        "extended.headers.enabled": "false",
    }
)


def connector_address(dsn: str) -> dict[str, str]:
    """Return a connector's settings for the address of its database."""
    parts = conninfo_to_dict(dsn)
    return {
        "database.hostname": str(parts["host"]),
        "database.port": str(parts["port"]),
        "database.user": str(parts["user"]),
        "database.password": str(parts.get("password", "")),
        "database.dbname": str(parts["dbname"]),
    }


def start_connect(
    bench: Bench, name: str, converters: Mapping[str, str], connector: Mapping[str, str]
) -> int:
    """
    Start Connect with a connector and return its process id.

    Raises:
        BenchError: Connect's archives were not fetched.
    """
    environment = bench.environment
    if environment.connect is None:
        message = "Kafka Connect was not fetched"
        raise BenchError(message)
    worker = {
        **converters,
        # All archives are on one class path, each with its own list of plugins.
        "plugin.discovery": "hybrid_warn",
        "bootstrap.servers": environment.kafka,
        "listeners": f"http://127.0.0.1:{environment.connect_port}",
        "offset.storage.file.filename": str(environment.folder / f"{name}.offsets"),
    }
    files = (
        environment.folder / f"{name}.worker",
        environment.folder / f"{name}.connector",
    )
    for path, settings in zip(files, (worker, connector), strict=True):
        lines = (f"{key}={value}\n" for key, value in settings.items())
        path.write_text("".join(lines), encoding="utf-8")
    command = (*environment.connect, *(str(path) for path in files))
    return environment.launcher.start(name, command)


_SHOWN_LINES: Final = 8


class ClientProgram:
    """One program, with its log file."""

    def __init__(
        self, environment: BenchEnvironment, name: str, command: Sequence[str]
    ) -> None:
        self._environment = environment
        self._name = name
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("ab") as output:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own command
                    self._command,
                    cwd=self._environment.folder,
                    env=dict(self._environment.env),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            except OSError as error:
                message = f"{self._name} cannot be started: {error}"
                raise BenchError(message) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int | None:
        """The process id, once the program is started."""
        return self._process.pid if self._process else None

    def is_done(self) -> bool:
        """
        Return whether the program has ended successfully.

        Raises:
            BenchError: The program failed; the message has the last lines of its log.
        """
        code = self._process.poll() if self._process else None
        if code:
            raise failure(self._environment, self._name, f"exited with code {code}")
        return code is not None

    def wait(self, within_s: float) -> None:
        """
        Wait until the program has ended successfully.

        Raises:
            BenchError: The program failed, or did not end in time.
        """
        try:
            if self._process is not None:
                self._process.wait(within_s)
        except subprocess.TimeoutExpired as error:
            reason = f"not done after {within_s:.0f} s"
            raise failure(self._environment, self._name, reason) from error
        self.is_done()

    @property
    def _log(self) -> Path:
        return self._environment.launcher.log(self._name)


def failure(environment: BenchEnvironment, name: str, reason: str) -> BenchError:
    """Return the failure of a process, with the last lines of its log."""
    log = environment.launcher.log(name)
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    shown = "".join(f"\n  {line}" for line in lines[-_SHOWN_LINES:])
    return BenchError(f"{name}: {reason}; log: {log}{shown}")


_INIT_WITHIN_S: Final = 60.0
_CONFIGURATION: Final = """\
version = 1
state_folder = "{folder}"

[[source]]
dsn = "{dsn}"
prefix = "{name}"
slot = "{slot}"
tables = {tables}

[kafka]
bootstrap_servers = "{kafka}"

[registry]
url = "http://127.0.0.1:1"

[topics]
partitions = {partitions}

[relay.outbox]
topic = "{name}.event.{{aggregate_type}}"
"""
_CONVERTERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        f"{what}.converter": "org.apache.kafka.connect.storage.StringConverter"
        for what in ("key", "value", "header")
    }
)
# Settings of every connector of the benchmarks.
CONNECTOR: Final[Mapping[str, str]] = MappingProxyType(
    {
        "name": "bench",
        "tasks.max": "1",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "publication.autocreate.mode": "disabled",
        "slot.drop.on.stop": "false",
        "snapshot.mode": "no_data",
    }
)
_CONNECTOR: Final[Mapping[str, str]] = MappingProxyType(
    {
        **CONNECTOR,
        "publication.name": PUBLICATION,
        "table.include.list": "towpath.outbox",
        "tombstones.on.delete": "false",
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.table.field.event.key": "aggregate_id",
        "transforms.outbox.route.by.field": "aggregate_type",
        _PLACEMENT: "type:header",
    }
)


def prepare_source(bench: Bench, run: BenchRun, tables: tuple[str, ...] = ()) -> None:
    """Run ``towpath relay init``: outbox, publications, and the run's slot."""
    config = _configure(bench, run, tables)
    command = (*bench.environment.towpath, "relay", "init", "--config", config)
    with ClientProgram(bench.environment, "init", command) as client:
        client.wait(_INIT_WITHIN_S)


def start(bench: Bench, run: BenchRun) -> int:
    """Start the run's system and return its process id."""
    if run.system == RELAY:
        return start_relay(bench, run)
    bench.broker.make_topic(run.topic)
    settings = connector(run, bench.tuning)
    return start_connect(bench, run.name, _CONVERTERS, settings)


def start_relay(bench: Bench, run: BenchRun, tables: tuple[str, ...] = ()) -> int:
    """Start the relay and return its process id."""
    config = _configure(bench, run, tables)
    command = (*bench.environment.towpath, "relay", "run", "--config", config)
    return bench.environment.launcher.start(run.name, command)


def check(bench: Bench, run: BenchRun, pid: int) -> None:
    """
    Check that the system and the source that it reads are still running.

    Raises:
        BenchError: The system has ended; the message has the last lines of its log.
        psycopg.Error: The source does not answer.
    """
    run.source.end_lsn()
    with contextlib.suppress(psutil.NoSuchProcess):
        if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return
    raise failure(bench.environment, run.name, "it ended")


def connector(run: BenchRun, tuning: Tuning) -> dict[str, str]:
    """Return the connector's settings for a run."""
    settings = {
        **_CONNECTOR,
        "topic.prefix": run.name,
        "slot.name": run.name,
        **connector_address(run.source.dsn),
        "transforms.outbox.route.topic.replacement": (
            f"{run.name}.event.${{routedByValue}}"
        ),
    }
    if run.has_same_headers:
        settings |= _SAME_HEADERS
    if run.system == DEBEZIUM_TUNED:
        settings |= tuning.latency if run.is_steady else tuning.throughput
    return settings


def configuration(bench: Bench, run: BenchRun, tables: tuple[str, ...] = ()) -> str:
    """Return the relay's configuration for a run."""
    return _CONFIGURATION.format(
        folder=bench.environment.folder,
        dsn=run.source.dsn,
        name=run.name,
        slot=run.name,
        tables=json.dumps(tables),
        kafka=bench.environment.kafka,
        partitions=PARTITIONS,
    )


def _configure(bench: Bench, run: BenchRun, tables: tuple[str, ...]) -> str:
    path = bench.environment.folder / f"{run.name}.toml"
    path.write_text(configuration(bench, run, tables), encoding="utf-8")
    return str(path)
