"""Cache servers for single tests, which kill them, or empty or truncate their data."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from support.waiting import until
from towpath.deploy.errors import NotReadyError
from towpath.deploy.local import ports, servers
from towpath.deploy.local.ports import LOOPBACK


class Valkey:
    """One server in a folder; it keeps its data across ``kill`` and ``start``."""

    def __init__(
        self, folder: Path, *options: str, program: Path | None = None
    ) -> None:
        self.folder = folder
        self._program = program
        self.options = options
        folder.mkdir()
        # The port is kept across kill and start: no outgoing connection may take it.
        self.port = ports.any_free()
        self.bus_port = ports.free_within(
            *ports.SERVER_PORTS, self.port + 1 - ports.SERVER_PORTS[0]
        )
        self.url = f"redis://{LOOPBACK}:{self.port}/0"
        self.client = redis.Redis.from_url(self.url, decode_responses=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it serves."""
        command = [
            str(self._program or servers.redis_program()),
            "--bind",
            LOOPBACK,
            "--port",
            str(self.port),
        ]
        command += ["--dir", str(self.folder), "--save", "", *self.options]
        if self._program is None:
            # An old server does not have this option.
            command += ["--cluster-port", str(self.bus_port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until(self._serves, "the cache serves", pause_s=0.01)

    def kill(self) -> None:
        """Kill the server, so that it saves nothing more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def written_bytes(self) -> int:
        """Wait until the file has all writes (disks may be slow); return its size."""
        until(
            lambda: self.client.info("persistence")["aof_buffer_length"] == 0,
            "the file has all writes",
            pause_s=0.01,
        )
        return self.file.stat().st_size

    def cut_short(self, size_bytes: int) -> None:
        """Kill the server, truncate its file to a size, and start the server again."""
        self.kill()
        with self.file.open("rb+") as file:
            file.truncate(size_bytes)
        self.start()

    @property
    def file(self) -> Path:
        """The server's append-only file."""
        (found,) = self.folder.glob("appendonlydir/*.incr.aof")
        return found

    def _serves(self) -> bool:
        try:
            servers.probe_redis(self.port)
        except NotReadyError:
            return False
        return True


@contextmanager
def valkey(
    folder: Path, *options: str, program: Path | None = None
) -> Iterator[Valkey]:
    """Provide a server, which by default syncs its append-only file every second."""
    server = Valkey(folder, *(options or ("--appendonly", "yes")), program=program)
    try:
        server.start()
        yield server
    finally:
        server.client.close()
        server.kill()
