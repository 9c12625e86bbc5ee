"""
The five parts of one state folder, brought up together, and their addresses.

``up`` may be called at any time: it starts parts that are not running, restarts those
that do not answer, and leaves the rest alone. Two stacks in two folders share nothing.
The lazy stack is for tests: it starts a part when the part's address is first read, so
a run that needs only the cache does not wait for OpenSearch.
"""

import contextlib
import fcntl
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from towpath.deploy.errors import PartError, StateFolderError
from towpath.deploy.local import lifecycle, ports, postgres, process, servers
from towpath.deploy.local.lifecycle import PartStatus
from towpath.deploy.local.part import Part, StateFolder
from towpath.deploy.local.ports import LOOPBACK
from towpath.deploy.local.process import interrupts_deferred
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import TowpathError, UsageError, has_no_descriptor

# Data that is removed needs no clean stop. Postgres ends its sessions within this time.
_PURGED_WITHIN_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Ports of the five parts, and the addresses that follow from them."""

    postgres_port: int
    kafka_port: int
    registry_port: int
    opensearch_port: int
    redis_port: int

    def dsn(self, database: str, user: str = postgres.USER) -> str:
        """Return the address of a database for a user, by default the administrator."""
        return postgres.dsn(self.postgres_port, database, user)

    @property
    def kafka(self) -> str:
        """Kafka's bootstrap server."""
        return f"{LOOPBACK}:{self.kafka_port}"

    @property
    def registry_url(self) -> str:
        """The registry's address for Confluent's clients."""
        return servers.registry_url(self.registry_port)

    @property
    def opensearch_url(self) -> str:
        """The address of OpenSearch's HTTP interface."""
        return f"http://{LOOPBACK}:{self.opensearch_port}"

    @property
    def redis_url(self) -> str:
        """The address of Redis, database 0."""
        return f"redis://{LOOPBACK}:{self.redis_port}/0"


NAMES: Final = ("postgres", "kafka", "registry", "opensearch", "redis")
# The second port of a part, to which no other process connects.
_INNER: Final = {"kafka": "kafka-controller", "registry": "registry-management"}
# Another process may take a port after it is chosen and before the part starts.
_PORT_CHOICES: Final = 3


class Stack:
    """The local stack of one state folder."""

    def __init__(
        self,
        state_folder: Path,
        postgres_programs: Path | None = None,
        postgres_folder: Path | None = None,
        *,
        has_optimized_kafka: bool = False,
    ) -> None:
        """
        Describe the stack, without creating anything.

        Args:
            state_folder: The stack's state folder.
            postgres_programs: Programs of a Postgres other than the packaged one.
            postgres_folder: The folder of Postgres's data if it is not the usual one.
            has_optimized_kafka: Whether Java optimizes Kafka's code as in production,
                which takes processor time in the first minute.
        """
        self.state = StateFolder(state_folder.resolve())
        self._postgres_programs = postgres_programs
        self._postgres_folder = postgres_folder
        self._has_optimized_kafka = has_optimized_kafka
        self._choosing = threading.Lock()

    def up(
        self,
        names: Sequence[str] = NAMES,
        report: Callable[[str, str], None] | None = None,
    ) -> Addresses:
        """
        Bring parts up, all at the same time, and create the databases.

        Args:
            names: The parts.
            report: Called with a part's name and its state, from several threads.

        Raises:
            UsageError: There is no such part.
            StateFolderError: The state folder cannot be created or written.
            PartError: Several parts failed; the others remain up.
            TowpathError: Exactly one part failed, with this error.
        """
        unknown = sorted(set(names) - set(NAMES))
        if unknown:
            message = f"unknown part {unknown[0]!r}; there are {', '.join(NAMES)}"
            raise UsageError(message)
        self.state.create()
        with self._locked():
            parts = self._parts(self._settle_ports(names), names)
            ending = threading.Event()
            with ThreadPoolExecutor(len(parts)) as threads:
                try:
                    with interrupts_deferred():
                        done = [
                            threads.submit(
                                self._bring_up, part, report or _report_nothing, ending
                            )
                            for part in parts
                        ]
                    wait(done)
                except BaseException:
                    # After Ctrl-C no part may be started during the cleanup.
                    ending.set()
                    raise
        failures = [failure for f in done if (failure := f.exception()) is not None]
        for failure in failures:
            if not isinstance(failure, TowpathError):
                raise failure
        if len(failures) == 1:
            # The error of a single part has its own remedy.
            raise failures[0]
        if failures:
            raise PartError("\n".join(str(failure) for failure in failures))
        return self.addresses()

    def down(self, *, within_s: float | None = None) -> None:
        """
        Stop all parts at the same time, and keep the data.

        Args:
            within_s: Parts that remain after this time are killed; by default each part
                has its own limit.

        Raises:
            StateFolderError: The state folder cannot be written.
        """
        if not self.state.stack.exists():
            return
        with self._locked():
            parts = self.parts()
            if within_s is not None:
                parts = [replace(part, stop_within_s=within_s) for part in parts]
            with ThreadPoolExecutor(len(NAMES)) as threads:
                list(threads.map(lambda p: lifecycle.take_down(p, self.state), parts))

    def purge(self) -> None:
        """
        Stop all parts and remove their data, logs and ports.

        Nothing is removed from a folder in which no stack was started, because a user's
        folder may have ``logs``, too.
        """
        if not self._ports_file.exists():
            return
        self.down(within_s=_PURGED_WITHIN_S)
        home = postgres.home_of(self.state, folder=self._postgres_folder)
        postgres.remove_home(home)
        # The ports are removed last, so that an interrupted removal can be repeated.
        data = [each for each in self.state.stack.iterdir() if each != self._ports_file]
        logs, files = self.state.root / "logs", self.state.root / "run"
        for folder in (logs, files, *data, self.state.stack):
            shutil.rmtree(folder, ignore_errors=True)

    def status(self) -> list[PartStatus]:
        """Return the status of every part, then of other processes of the folder."""
        known = self._ports()
        parts = {part.name: part for part in self.parts()}
        others = [name for name in self.state.parts() if name not in NAMES]
        return [
            lifecycle.status(
                name,
                self.state,
                known.get(name),
                parts[name].probe if name in parts else None,
            )
            for name in (*NAMES, *others)
        ]

    def parts(self) -> list[Part]:
        """Describe the parts that have been started, for a supervisor."""
        return self._parts(self._ports(), NAMES)

    def addresses(self) -> Addresses:
        """Return the addresses of the parts; a port is 0 until its first start."""
        known = self._ports()
        return Addresses(**{f"{name}_port": known.get(name, 0) for name in NAMES})

    def _bring_up(
        self, part: Part, report: Callable[[str, str], None], ending: threading.Event
    ) -> None:
        try:
            part, started = self._start(part, report, ending)
            if part.name == "postgres" and part.port is not None:
                postgres.create_databases(part.port)
        except OSError as error:
            report(part.name, "failed")
            if has_no_descriptor(error):
                # This error has its own remedy.
                raise
            message = (
                f"{part.name} cannot be started: {error}; "
                f"log: {self.state.log(part.name)}"
            )
            raise PartError(message) from error
        except Exception:
            report(part.name, "failed")
            raise
        report(part.name, "started" if started else "was up")

    def _start(
        self, part: Part, report: Callable[[str, str], None], ending: threading.Event
    ) -> tuple[Part, bool]:
        """Start a part, with new ports if its own were taken before its start."""
        for _ in range(_PORT_CHOICES - 1):
            report(part.name, "starting")
            try:
                return part, lifecycle.bring_up(part, self.state, ending)
            except PartError:
                before = self._ports_of(part.name)
                known = self._settle_ports([part.name])
                if ending.is_set() or self._ports_of(part.name) == before:
                    raise
                (part,) = self._parts(known, [part.name])
        return part, lifecycle.bring_up(part, self.state, ending)

    def _parts(self, known: dict[str, int], names: Sequence[str]) -> list[Part]:
        """Describe the parts whose ports are known."""
        makers: dict[str, Callable[[], Part]] = {
            "postgres": lambda: postgres.part(
                self.state,
                known["postgres"],
                self._postgres_programs,
                self._postgres_folder,
            ),
            "kafka": lambda: servers.kafka_part(
                self.state,
                known["kafka"],
                known["kafka-controller"],
                is_optimized=self._has_optimized_kafka,
            ),
            "registry": lambda: servers.registry_part(
                self.state, known["registry"], known["registry-management"]
            ),
            "opensearch": lambda: servers.opensearch_part(
                self.state, known["opensearch"]
            ),
            "redis": lambda: servers.redis_part(self.state, known["redis"]),
        }
        return [makers[name]() for name in names if name in known]

    @property
    def _ports_file(self) -> Path:
        return self.state.stack / "ports.json"

    def _ports(self) -> dict[str, int]:
        return ports.read_ports(self._ports_file)

    def _ports_of(self, name: str) -> list[int | None]:
        """Return the port and the inner port of a part."""
        known = self._ports()
        return [known.get(name), known.get(_INNER.get(name, name))]

    def _settle_ports(self, names: Sequence[str]) -> dict[str, int]:
        """Keep every port that is ours or free, and choose new ones for the others."""
        with self._choosing:
            known = self._ports()
            self._choose_ports(names, known)
            ports.write_ports(self._ports_file, known)
        return known

    def _choose_ports(self, names: Sequence[str], known: dict[str, int]) -> None:
        for name in names:
            if (
                process.find(self.state.process_file(name)) is not None
                and name in known
            ):
                continue
            wanted = [name, _INNER[name]] if name in _INNER else [name]
            for port_name in wanted:
                port = known.get(port_name)
                if port is not None and ports.becomes_free(port, SystemClock()):
                    continue
                choose = (
                    servers.free_opensearch_port
                    if name == "opensearch"
                    else ports.any_free
                )
                known[port_name] = choose(known.values())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """
        Hold the lock of the state folder.

        Raises:
            StateFolderError: The lock cannot be opened; for instance, the folder
                belongs to another user.
        """
        path = self.state.stack / "lock"
        try:
            lock = path.open("w")
        except OSError as error:
            message = f"{path}: {error.strerror}"
            raise StateFolderError(message) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _report_nothing(*_: str) -> None:
    """Ignore the state of a part."""


class LazyStack:
    """The addresses of a stack; reading an address starts its part."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._started: set[str] = set()
        self._lock = threading.Lock()

    @property
    def state_folder(self) -> Path:
        """The state folder of the stack."""
        return self.stack.state.root

    def up(self, *names: str) -> Addresses:
        """Start the named parts at the same time; all of them if none is named."""
        with self._lock:
            missing = [name for name in names or NAMES if name not in self._started]
            if missing:
                self.stack.up(missing)
                self._started.update(missing)
            return self.addresses()

    def addresses(self) -> Addresses:
        """Return the addresses of the parts; a port is 0 until its first start."""
        return self.stack.addresses()

    def dsn(self, database: str) -> str:
        """Return the address of a database."""
        return self.up("postgres").dsn(database)

    @property
    def kafka(self) -> str:
        """Kafka's bootstrap server."""
        return self.up("kafka").kafka

    @property
    def registry_url(self) -> str:
        """The registry's address for Confluent's clients."""
        return self.up("registry").registry_url

    @property
    def opensearch_url(self) -> str:
        """The address of OpenSearch's HTTP interface."""
        return self.up("opensearch").opensearch_url

    @property
    def redis_url(self) -> str:
        """The address of Redis, database 0."""
        return self.up("redis").redis_url
