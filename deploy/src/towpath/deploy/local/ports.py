"""
Free ports on the loopback address, and probes of the servers that listen on them.

A part keeps its port across restarts, so that addresses in a configuration file remain
valid. The part gets a new port only if another process takes its port while the part is
down.
"""

import ipaddress
import json
import secrets
import socket
import urllib.request
from collections.abc import Callable, Collection, Iterable
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from towpath.deploy.errors import NotReadyError
from towpath.schemas.clock import Clock, Deadline
from towpath.sinks.errors import PrerequisiteError

LOOPBACK: Final = "127.0.0.1"

# Linux gives outgoing connections ports from 32768 on by default; most well-known
# servers use ports below 20000.
SERVER_PORTS: Final = (20_000, 31_999)
_FREED_WITHIN_S: Final = 3.0
_POLL_EVERY_S: Final = 0.05


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_free(port: int) -> bool:
    """Return whether a server could listen on a port now."""
    with socket.socket() as probe:
        # Servers set this option, too, so a port in TIME_WAIT is free for them.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def becomes_free(port: int, clock: Clock) -> bool:
    """
    Return whether a server could listen on a port now or very soon.

    The sockets of a killed server with many threads close shortly after it exits.
    """
    deadline = Deadline(clock, _FREED_WITHIN_S)
    while not is_free(port):
        if deadline.passed():
            return False
        clock.wait(_POLL_EVERY_S)
    return True


def any_free(taken: Collection[int] = ()) -> int:
    """
    Return a free port outside the range of outgoing connections.

    Args:
        taken: Ports that are reserved, although nothing listens on them yet.
    """
    first, last = SERVER_PORTS
    return free_within(first, last, secrets.randbelow(last - first), taken)


def free_ports_for(names: Iterable[str]) -> dict[str, int]:
    """Return a different free port for each name."""
    chosen: dict[str, int] = {}
    for name in names:
        chosen[name] = any_free(chosen.values())
    return chosen


def free_within(first: int, last: int, start: int, taken: Collection[int] = ()) -> int:
    """
    Return a free port in a range; the search begins at ``first + start`` and wraps.

    Raises:
        PrerequisiteError: Every port in the range is taken.
    """
    width = last - first + 1
    for step in range(width):
        port = first + (start + step) % width
        if port not in taken and is_free(port):
            return port
    message = f"every port from {first} to {last} is taken"
    raise PrerequisiteError(message)


def read_ports(path: Path) -> dict[str, int]:
    """Read the stored ports; an unreadable file counts as empty."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): int(port) for name, port in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write_ports(path: Path, ports: dict[str, int]) -> None:
    """Store the ports atomically."""
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(ports, indent=1, sort_keys=True), encoding="utf-8")
    scratch.replace(path)


# The timeout of one probe; the part's own deadline bounds all of them together.
ANSWER_WITHIN_S: Final = 3.0


def check_listens(port: int) -> None:
    """
    Check that a server listens on the port.

    Raises:
        NotReadyError: No server listens.
    """
    try:
        socket.create_connection((LOOPBACK, port), timeout=ANSWER_WITHIN_S).close()
    except OSError as error:
        message = f"nothing listens on port {port}"
        raise NotReadyError(message) from error


def get_page(url: str, read: Callable[[bytes], Any] = bytes) -> Any:  # noqa: ANN401 - as read
    """
    Fetch a page from a local server, and return the result of ``read``.

    Raises:
        NotReadyError: There was no response, an error, or a page that ``read`` rejects.
    """
    # A proxy from the environment must not answer for the loopback address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=ANSWER_WITHIN_S) as response:
            return read(response.read())
    except (OSError, HTTPException, ValueError) as error:
        message = f"{url}: {error}"
        raise NotReadyError(message) from error
