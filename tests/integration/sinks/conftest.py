"""What the tests of single sinks share."""

import socket

import pytest


@pytest.fixture
def unused_port() -> int:
    """Find a port on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
