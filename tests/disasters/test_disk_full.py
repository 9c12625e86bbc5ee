"""The disk of a driver, of Kafka or of the source is full: docs/disasters/disk-full.md.

The tests simulate a full disk without root: a limit on file sizes makes writes fail.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from support.disaster import PATIENCE_S, print_lines
from support.waiting import until
from towpath.deploy.local.lifecycle import PartState
from towpath.deploy.local.stack import LazyStack, Stack

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(900)]


def limit(root: psutil.Process, size: str) -> None:
    """Make writes by a process and its children fail beyond a file size."""
    for each in (root, *root.children(recursive=True)):
        command = ("prlimit", "--pid", str(each.pid), f"--fsize={size}:")
        # Only the user that runs a process may limit it. A child may have ended by now.
        with suppress(psutil.NoSuchProcess):
            user = {"user": each.uids().real, "group": each.gids().real}
            is_other = user["user"] != os.getuid()
            subprocess.run(command, check=False, **user if is_other else {})


def await_stop(stack: Stack, name: str, size: str) -> None:
    """Limit the size of a part's files, and wait until the part has stopped."""

    def state() -> PartState:
        (part,) = (each for each in stack.status() if each.name == name)
        return part.state

    (running,) = (each for each in stack.status() if each.name == name)
    limit(psutil.Process(running.pid), size)
    until(
        lambda: state() is PartState.STOPPED,
        f"{name} stops for lack of space",
        timeout_s=PATIENCE_S,
    )


def print_last(stack: Stack, name: str, text: str) -> None:
    """Print the last line of a part's log that contains a string."""
    lines = stack.state.log(name).read_text(encoding="utf-8").splitlines()
    print_lines(f"{name} log: {[line for line in lines if text in line][-1]}")


@pytest.fixture
def own_stack(tmp_path_factory) -> Iterator[LazyStack]:
    """Provide a separate stack, whose Kafka the test may stop."""
    made = LazyStack(Stack(tmp_path_factory.mktemp("own_stack")))
    yield made
    made.stack.purge()


def test_a_full_disk_stops_a_sink_and_loses_nothing(disaster):
    """
    Once there is space again, the sink resumes on its own.
    """
    with disaster.running():
        disaster.step("no process of the driver can write to a file")
        driver = psutil.Process(disaster.driver.pid)
        limit(driver, "0")
        until(
            lambda: (
                "disk full" in disaster.towpath("sink", "list", is_shown=False).text
            ),
            "the sink fails for lack of space",
            timeout_s=PATIENCE_S,
        )
        disaster.towpath("sink", "list")
        disaster.step("there is space again")
        limit(driver, "unlimited")
        disaster.verify()


def test_a_full_disk_stops_kafka_and_loses_nothing(make_disaster, own_stack):
    """
    After a restart with free space, Kafka has every record; relay and sinks resume.
    """
    disaster = make_disaster(shared=own_stack)
    with disaster.running():
        disaster.step("Kafka cannot write to any file")
        await_stop(own_stack.stack, "kafka", "0")
        disaster.towpath("relay", "status")
        disaster.towpath("doctor")
        disaster.step("there is space again: start Kafka")
        written = len(disaster.writer.events)
        own_stack.stack.up(["kafka"])
        until(
            lambda: len(set(disaster.published_events())) > written,
            "events written in the meantime are published",
            timeout_s=PATIENCE_S,
        )
        disaster.towpath("relay", "status")
        disaster.verify_events()
        disaster.verify()


def test_a_full_disk_stops_the_source_and_loses_nothing(disaster):
    """
    After its restart, the source has each commit that it confirmed; all are published.
    """
    with disaster.running():
        disaster.step("the source cannot write WAL")
        count = len(disaster.logged("relay streaming"))
        await_stop(disaster.own, "postgres", "1000000")
        print_last(disaster.own, "postgres", "PANIC")
        disaster.towpath("relay", "status")
        disaster.towpath("doctor")
        disaster.step("there is space again: start the source")
        disaster.own.up(["postgres"])
        disaster.reconnect(disaster.dsn)
        disaster.wait_for_relay_log("relay streaming", more_than=count)
        assert [] == disaster.logged("gap in the source's history")
        disaster.verify_events()
        disaster.verify()
