"""
The servers that all workers of a run share: Kafka, the registry and OpenSearch.

Separate servers for each worker would take a tenth of the run's CPU time. The first
worker that needs a server starts it, and the run's controller removes it at the end.
Tests can share a server because the names of their topics, schemas and indexes are
unique. A test that stops or configures one needs ``worker_stack`` (``conftest.py``).

Each worker has its own Postgres and Redis: a new slot waits for every open transaction
of its server, and relays read the WAL of all databases.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from support import remains
from support.waiting import until
from towpath.deploy.local import process
from towpath.deploy.local.lifecycle import PartState
from towpath.deploy.local.stack import NAMES, Addresses, LazyStack, Stack

_START: Final = """
import sys
from pathlib import Path
from towpath.deploy.local.stack import Stack
Stack(Path(sys.argv[1])).up([sys.argv[2]])
"""


class SharedServers(NamedTuple):
    """
    The place of a run's shared servers, which the controller passes to its workers.

    Attributes:
        folder: The folder of the servers.
        mark: The mark of their processes.
    """

    folder: str
    mark: str


@contextlib.contextmanager
def shared_servers() -> Iterator[SharedServers]:
    """Make the folder of a run's servers; end and remove them after the block."""
    with remains.watched() as mark:
        folder = remains.new_folder()
        try:
            yield SharedServers(str(folder), mark)
        finally:
            remains.purge(folder)


class SharingStack(LazyStack):
    """A worker's stack, some of whose parts are shared by all workers of the run."""

    def __init__(self, own: Stack, shared: SharedServers) -> None:
        super().__init__(own)
        self._mark = shared.mark
        self._shared = remains.shared_stacks(Path(shared.folder))
        self._found: set[str] = set()

    def up(self, *names: str) -> Addresses:
        """Start the named parts that are not running; all of them if none is named."""
        wanted = set(names or NAMES)
        for name in wanted & self._shared.keys() - self._found:
            self._start(name)
            self._found.add(name)
        own = wanted - self._shared.keys()
        return super().up(*own) if own else self.addresses()

    def _start(self, name: str) -> None:
        """
        Start a shared server unless it is running; it is not this process's child.

        If a server is slow to answer, this waits: restarting it, as ``Stack.up`` does,
        would make tests of other workers fail.
        """
        server = self._shared[name]
        if process.find(server.state.process_file(name)) is None:
            inherited = os.environ  # noqa: TID251 - the server ends with the run
            subprocess.run(
                [sys.executable, "-c", _START, str(server.state.root), name],
                env={**inherited, remains.MARK: self._mark},
                check=True,
            )
        until(lambda: _is_ready(server, name), f"{name} answers")

    def addresses(self) -> Addresses:
        """Return the parts' addresses; a part's port is 0 before its first start."""
        shared = {
            f"{name}_port": getattr(self._shared[name].addresses(), f"{name}_port")
            for name in tuple(self._found)
        }
        return replace(super().addresses(), **shared)


def _is_ready(server: Stack, name: str) -> bool:
    return any(
        part.name == name and part.state is PartState.READY for part in server.status()
    )
