"""The processes of the writers: one that ends is an error of the comparison."""

import pytest

from towpath.loadtests.capture.writers import (
    NoPublisher,
    WriterProcess,
    WriterSetup,
    commit_and_stall,
)
from towpath.loadtests.errors import BenchError


@pytest.mark.timeout(30)
def test_a_writer_that_was_killed_cannot_go_on():
    """
    Both ends of the conversation say so: what is sent to it, and what it should send.
    """
    setup = WriterSetup(dsn="", publisher=NoPublisher(), transactions=())
    with WriterProcess(commit_and_stall, setup) as writer:
        writer.kill()
        with pytest.raises(BenchError, match="a writer ended"):
            writer.send()
        with pytest.raises(BenchError, match="a writer ended"):
            writer.receive(1.0)
