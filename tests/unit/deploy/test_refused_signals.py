"""A server's refusal of a statement about signals is reported as one of our errors."""

from contextlib import contextmanager

import psycopg
import pytest

from towpath.deploy.snapshots import signals
from towpath.relay.errors import SourceRefusedError
from towpath.settings import Source

SOURCE = Source(dsn="postgresql://x/y", slot="here")


@contextmanager
def refusing(_dsn):
    """Open a session that may not read or write the tables."""
    message = "permission denied for table signal"
    raise psycopg.errors.InsufficientPrivilege(message)
    yield


@pytest.mark.parametrize(
    "command",
    [
        signals.progress,
        lambda source: signals.state(source, "one"),
        lambda source: signals.send(source, "stop-snapshot", {}),
    ],
    ids=["progress", "state", "send"],
)
def test_a_missing_permission_is_reported_with_its_remedy(command, monkeypatch):
    """
    The platform's status, for instance, reports it and shows the rest.
    """
    monkeypatch.setattr(signals, "connected", refusing)

    with pytest.raises(SourceRefusedError, match="permission denied for table signal"):
        command(SOURCE)
