"""The chaos observers: unreadable input, and the cleanup."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from towpath.loadtests.chaos import observers
from towpath.loadtests.chaos.relay import ChaosRelay
from towpath.loadtests.errors import ChaosError


def test_a_log_line_cut_off_by_a_kill_is_left_out(tmp_path: Path):
    """
    The other lines are counted, whatever bytes the cut-off line ends with.
    """
    log = tmp_path / "relay.log"
    line = b'{"level": "warning", "event": "slow", "reason": "r"}\n'
    log.write_bytes(line + b'{"level": "warning", "event": "caf\xc3' + b"\n" + line)
    environment: Any = SimpleNamespace(
        folder=tmp_path, prefix="p", launcher=SimpleNamespace(log=lambda _name: log)
    )

    assert {"slow: r": 2} == ChaosRelay(environment, seed=1).warnings()


class UnmovedServer:
    """A server that records configured standby names, but applies none."""

    info = SimpleNamespace(dbname="chaos")

    def __init__(self) -> None:
        self.named: list[str] = []

    def execute(self, statement: Any, _arguments: Any = ()) -> Any:
        """Record a name; report that no standby is named."""
        text = statement if isinstance(statement, bytes | str) else str(statement)
        if "alter system" in str(text):
            self.named.append("nobody" if "nobody" in str(text) else "none")
        return SimpleNamespace(fetchone=lambda: ("",))


def test_a_standby_name_that_is_not_applied_in_time_is_removed(
    monkeypatch: pytest.MonkeyPatch,
):
    """
    Otherwise the server would apply it later, and its commits would wait forever.
    """
    server: Any = UnmovedServer()
    monkeypatch.setattr(observers, "connect", lambda _dsn: server)
    clock = SimpleNamespace(now_s=0.0)
    clock.monotonic_s = lambda: clock.now_s
    clock.wait = lambda _s: setattr(clock, "now_s", clock.now_s + 1.0)
    environment: Any = SimpleNamespace(dsn="", clock=clock)
    source = observers.SourceObserver(environment)

    with (
        pytest.raises(ChaosError, match="does not apply"),
        source.late_commits(),
    ):
        pass

    assert ["nobody", "none"] == server.named
