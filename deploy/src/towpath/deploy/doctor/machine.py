"""The checks of this machine and of the configuration."""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from towpath.loadtests.bench import interpreter
from towpath.relay.commands import compiled
from towpath.schemas.findings import (
    CheckFinding,
    error_finding,
    info_finding,
    warning_finding,
)
from towpath.settings import Settings

_PACKAGES: Final = ("towpath-relay", "towpath-sinks")
_GIBIBYTE: Final = 1024**3
# Progress and checkpoints take megabytes, and Spark's temporary files more.
_MIN_FREE_BYTES: Final = _GIBIBYTE
_LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1", "")


class FolderFacts(NamedTuple):
    """Facts about the state folder, or about the nearest parent that exists."""

    path: Path
    is_writable: bool
    free_bytes: int


class MachineFacts(NamedTuple):
    """
    Facts about this machine.

    Attributes:
        python: The running Python's version.
        folder: The state folder.
        pinned: The exact versions that our packages need, by package.
        installed: The installed versions.
        java: The path of the Java runtime; None if none was found.
        missing_jars: The number of the engine's archives that are missing.
    """

    python: tuple[int, int]
    folder: FolderFacts
    pinned: Mapping[str, str]
    installed: Mapping[str, str]
    java: Path | None
    missing_jars: int


def describe_code(environ: Mapping[str, str]) -> str:
    """
    Return one line: this Python, and the form in which the relay's hot modules run.

    Raises:
        ConfigurationError: ``TOWPATH_COMPILED`` is neither on nor off.
    """
    form = compiled.available(environ)
    return f"Python {interpreter.describe()}; the relay's hot modules: {form}"


def machine_findings(settings: Settings) -> list[CheckFinding]:
    """Check this machine."""
    return list(findings_of(read_machine(settings), has_sinks=bool(settings.sink)))


def read_machine(settings: Settings) -> MachineFacts:
    """Read the facts; nothing is created."""
    from towpath.sinks.errors import PrerequisiteError  # noqa: PLC0415 - keeps --help fast
    from towpath.sinks.jars import java, store  # noqa: PLC0415

    try:
        home: Path | None = java.home()
    except PrerequisiteError:
        home = None
    wanted = [jar for jar in store.read_lock() if jar.use == "spark"]
    pinned = _pinned_versions()
    return MachineFacts(
        python=sys.version_info[:2],
        folder=_folder(settings.state_folder),
        pinned=pinned,
        installed=_installed(pinned),
        java=home,
        missing_jars=len(store.missing(wanted, store.folder())),
    )


def _folder(path: Path) -> FolderFacts:
    existing = path.absolute()
    while not _exists(existing):
        existing = existing.parent
    return FolderFacts(
        path,
        os.access(existing, os.W_OK | os.X_OK),
        shutil.disk_usage(existing).free,
    )


def _exists(path: Path) -> bool:
    """Return whether a path exists, as far as this user can see."""
    try:
        return path.exists()
    except OSError:
        return False


def _pinned_versions() -> dict[str, str]:
    """Return the exact versions that our packages require, by package."""
    found = {}
    for package in _PACKAGES:
        for requirement in metadata.requires(package) or ():
            needed = requirement.partition(";")
            name, _, version = needed[0].partition("==")
            if version and not needed[1]:
                found[name.strip()] = version.strip()
    return found


def _installed(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of installed packages; a missing one is left out."""
    found = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def findings_of(facts: MachineFacts, *, has_sinks: bool) -> Iterator[CheckFinding]:
    """Yield the findings about a machine; a pure function of its facts."""
    oldest, newest = interpreter.SUPPORTED
    if not oldest <= facts.python <= newest:
        yield error_finding(
            "machine-python",
            f"this Python is {facts.python[0]}.{facts.python[1]}",
            "the client libraries were not tested with it",
            "install Towpath with Python 3.11, 3.12 or 3.13",
        )
    for name, version in facts.pinned.items():
        if facts.installed.get(name) != version:
            yield error_finding(
                "machine-package",
                f"the package {name} has version {facts.installed.get(name, 'none')}",
                "the clients and the engine were tested with one version only",
                f"it must be {version}: pip install {name}=={version}",
            )
    yield from _folder_findings(facts.folder)
    if has_sinks and facts.java is None:
        yield error_finding(
            "machine-java",
            "no Java 21 was found",
            "no sink driver starts on this machine",
            "pip install 'towpath-sinks[java]', or set JAVA_HOME to a Java 21 runtime",
        )
    if has_sinks and facts.missing_jars:
        yield warning_finding(
            "machine-jars",
            f"{facts.missing_jars} archives of the engine are missing or truncated",
            "no sink driver starts on this machine",
            "towpath sink fetch-jars",
        )


def _folder_findings(folder: FolderFacts) -> Iterator[CheckFinding]:
    if not folder.is_writable:
        yield error_finding(
            "machine-state-folder",
            f"the state folder {folder.path} cannot be written by this user",
            "sinks cannot store their progress, and halt",
            f"sudo install -d -o $USER {folder.path}, or name another state_folder",
        )
    if folder.free_bytes < _MIN_FREE_BYTES:
        yield warning_finding(
            "machine-disk",
            f"the disk of the state folder has {folder.free_bytes // 1024**2} MiB left",
            "once it is full, sinks cannot store their progress, and stop",
            f"free disk space for {folder.path}, or name another state_folder",
        )


def settings_findings(settings: Settings) -> list[CheckFinding]:
    """Return the findings about valid settings that may still cause harm."""
    return [*_signal_findings(settings), *_connection_findings(settings)]


def _signal_findings(settings: Settings) -> Iterator[CheckFinding]:
    if settings.sink and not settings.signal_topic:
        names = ", ".join(sink.name for sink in settings.sink)
        yield warning_finding(
            "settings-no-signal-topic",
            f"relay.snapshot.signal_topic is empty, and there are sinks: {names}",
            "a sink that lost rows cannot request them",
            'set relay.snapshot.signal_topic = "{prefix}-signal"',
        )


def _connection_findings(settings: Settings) -> Iterator[CheckFinding]:
    hosts = _hosts(settings.kafka.bootstrap_servers.split(","))
    if hosts and settings.kafka.protocol.endswith("PLAINTEXT"):
        yield info_finding(
            "settings-kafka-plaintext",
            f"records go to {', '.join(hosts)} without encryption",
            "anyone on the network path can read and change them",
            'set "security.protocol" = "SASL_SSL" or "SSL" in [kafka.client]',
        )


def _hosts(servers: Sequence[str]) -> list[str]:
    """Return the hosts that are not this machine."""
    hosts = (server.strip().rpartition(":")[0].strip("[]") for server in servers)
    return [host for host in hosts if host not in _LOCAL_HOSTS]
