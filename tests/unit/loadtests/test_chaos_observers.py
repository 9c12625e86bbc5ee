"""The observers of chaos: what they cannot read is an error, or is left out."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from towpath.loadtests.chaos.fold import Fold
from towpath.loadtests.chaos.observers import TopicReader
from towpath.loadtests.chaos.relay import ChaosRelay
from towpath.loadtests.errors import ChaosError
from towpath.schemas.clock import SystemClock


class SilentConsumer:
    """Knows one partition, and never learns its end."""

    def list_topics(self, timeout: float) -> Any:
        """Return the topic."""
        del timeout
        return SimpleNamespace(topics={"t": SimpleNamespace(partitions={0: None})})

    def incremental_assign(self, places: Any) -> None:
        """Do nothing."""

    def get_watermark_offsets(self, place: Any, within_s: float) -> None:
        """Return nothing, as the client does after a timeout."""

    def close(self) -> None:
        """Do nothing."""


def test_an_end_that_is_not_read_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch):
    """
    Without it, records that were not read would pass for lost ones.
    """
    monkeypatch.setattr(
        "towpath.loadtests.chaos.observers.Consumer", lambda _config: SilentConsumer()
    )
    with TopicReader("nowhere", SystemClock()) as reader:
        reader.follow("t", Fold("s.a"))
        with pytest.raises(ChaosError, match="the end of t was not read in 10 s"):
            reader.read_to_end(1.0)


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
