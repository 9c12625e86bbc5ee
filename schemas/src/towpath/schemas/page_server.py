"""
The HTTP server of the pages that a process serves about itself, such as its metrics.

Each request has a thread of its own, so that no page delays the process.
"""

import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

# A client that closes its connection, or stops reading, causes one of these.
_CLIENT_IS_GONE: Final = (ConnectionError, TimeoutError)


class PageServer(ThreadingHTTPServer):
    """A server on an IPv4 or an IPv6 address."""

    daemon_threads = True

    def __init__(
        self, host: str, port: int, handler: type[BaseHTTPRequestHandler]
    ) -> None:
        """
        Listen on ``port`` of ``host``; 0 picks a free port.

        A name that has addresses of both families is served on its IPv4 address. An
        IPv6 address may have brackets; ``::`` includes all IPv4 addresses.

        Raises:
            OSError: The port is in use, or the address is not one of this host's, or
                not an address at all.
        """
        address = host.strip("[]")
        self.address_family = _family(address, port)
        super().__init__((address, port), handler)

    def server_bind(self) -> None:
        if self.address_family is socket.AF_INET6:
            # The system's default, unless an administrator has changed it.
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(
        self,
        request: object,  # noqa: ARG002 - the base class's
        client_address: object,  # noqa: ARG002
    ) -> None:
        """Report an uncaught exception of a thread, unless the client disconnected."""
        kind, error, traceback = sys.exc_info()
        if kind is not None and not isinstance(error, _CLIENT_IS_GONE):
            thread = threading.current_thread()
            threading.excepthook(
                threading.ExceptHookArgs((kind, error, traceback, thread))
            )


def _family(address: str, port: int) -> socket.AddressFamily:
    """Return the family of an address; an empty one means every IPv4 address."""
    try:
        found = socket.getaddrinfo(
            address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    # A part of the name is empty or too long.
    except ValueError as error:
        message = f"{address!r} is not the name of a host"
        raise OSError(message) from error
    return min((family for family, *_ in found), key=_is_not_ipv4)


def _is_not_ipv4(family: socket.AddressFamily) -> bool:
    return family is not socket.AF_INET
