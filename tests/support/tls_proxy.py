"""A proxy that terminates TLS for a server that does not support it."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from towpath.deploy.local.ports import LOOPBACK


@contextmanager
def tls_in_front_of(port: int, certificate: Path) -> Iterator[int]:
    """Provide a TLS port that forwards to a port on this machine."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server((LOOPBACK, 0)) as listener:
        threading.Thread(
            target=_serve, args=(listener, context, port), daemon=True
        ).start()
        yield listener.getsockname()[1]
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    while True:
        try:
            accepted, _ = listener.accept()
        except OSError:
            return
        threading.Thread(
            target=_forward, args=(accepted, context, port), daemon=True
        ).start()


def _forward(accepted: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with (
        suppress(OSError),
        accepted,
        context.wrap_socket(accepted, server_side=True) as outside,
        socket.create_connection((LOOPBACK, port)) as inside,
    ):
        back = threading.Thread(target=_copy, args=(inside, outside), daemon=True)
        back.start()
        _copy(outside, inside)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
