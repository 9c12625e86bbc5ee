"""The writers' processes: if one ends, the comparison fails."""

import pytest

from towpath.loadtests.capture.writers import (
    NoPublisher,
    WriterProcess,
    WriterSetup,
    commit_and_stall,
)
from towpath.loadtests.errors import BenchError


@pytest.mark.timeout(30)
def test_a_killed_writer_cannot_continue():
    """
    Both sending to it and receiving from it report its end.
    """
    setup = WriterSetup(dsn="", publisher=NoPublisher(), transactions=())
    with WriterProcess(commit_and_stall, setup) as writer:
        writer.kill()
        with pytest.raises(BenchError, match="a writer ended"):
            writer.send()
        with pytest.raises(BenchError, match="a writer ended"):
            writer.receive(1.0)
