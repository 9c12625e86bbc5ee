"""The observers of chaos: what they cannot read is left out."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from towpath.loadtests.chaos.relay import ChaosRelay


def test_a_line_of_the_log_that_a_kill_cut_off_is_left_out(tmp_path: Path):
    """
    The other lines are counted, whatever bytes it ends with.
    """
    log = tmp_path / "relay.log"
    line = b'{"level": "warning", "event": "slow", "reason": "r"}\n'
    log.write_bytes(line + b'{"level": "warning", "event": "caf\xc3' + b"\n" + line)
    environment: Any = SimpleNamespace(
        folder=tmp_path, prefix="p", launcher=SimpleNamespace(log=lambda _name: log)
    )

    assert {"slow: r": 2} == ChaosRelay(environment, seed=1).warnings()
