"""The relay as a capture method: it does not outlive its run."""

from types import SimpleNamespace
from typing import Any

import pytest

from towpath.loadtests.bench import publishers
from towpath.loadtests.capture import relay
from towpath.loadtests.errors import BenchError
from towpath.schemas.clock import SystemClock


def test_a_relay_whose_slot_cannot_be_read_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
):
    """
    The `with` block that would stop it is never entered.
    """
    ended: list[str] = []
    source = SimpleNamespace(
        close=lambda: ended.append("connection"), end_lsn=lambda: "0/0"
    )

    def fail(_dsn: str, **_: object) -> None:
        message = "no slot"
        raise BenchError(message)

    monkeypatch.setattr(relay, "BenchSource", lambda *_: source)
    monkeypatch.setattr(publishers, "start_relay", lambda *_: 1)
    monkeypatch.setattr(relay.psycopg, "connect", fail)
    environment = SimpleNamespace(launcher=SimpleNamespace(stop=ended.append))
    bench = SimpleNamespace(environment=environment, clock=SystemClock())
    run: Any = SimpleNamespace(name="capture_relay", bench=bench, dsn="")

    with pytest.raises(BenchError, match="no slot"), relay.RelayMethod(run):
        pass

    assert ["capture_relay", "connection"] == ended
