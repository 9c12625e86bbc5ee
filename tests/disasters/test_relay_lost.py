"""A relay is killed, or hangs, while a second one stands by: docs/disasters."""

import os
import re
import signal

import pytest

from support.disaster import PATIENCE_S, print_lines
from support.waiting import CLOCK, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

HELD = "slot held by another process: standby"
# A frozen relay may have handed events to its client, which sends them when the process
# continues: only Kafka's transactions fence them off.
OPTIONS = """
standby = true
delivery = "transactional"
"""
END_CLAIM = "select pg_terminate_backend({})"
END_STREAM = "select pg_terminate_backend(active_pid) from pg_replication_slots"


def counts(disaster):
    """
    Return how many times the relays have logged each event that is awaited below.

    A relay waits for the claim, and then for the end of the previous holder's stream.
    If the server is slow to end that stream, the relay logs the wait and the takeover
    once more.
    """
    events = (HELD, "slot taken over", "relay streaming")
    return {event: len(disaster.logged(event)) for event in events}


def await_takeover(disaster, before):
    """Wait until another relay has taken over since ``before``, and is streaming."""
    for event in ("slot taken over", "relay streaming"):
        disaster.wait_for_relay_log(event, more_than=before[event])


def end_sessions(disaster, holder):
    """End both database sessions of a relay, given the description of one."""
    (pid,) = re.findall(r"server process (\d+) ", holder)
    for statement in (END_CLAIM.format(pid), END_STREAM):
        print_lines(statement)
        disaster.execute(statement)


def test_a_standby_takes_over(disaster):
    """
    No event is lost or published twice, and the cache ends up equal to the source.
    """
    with disaster.running(relay=OPTIONS):
        disaster.step(
            "start a second relay: it stands by, for longer than 60 s if needed"
        )
        before = counts(disaster)
        first, second = disaster.process, disaster.start()
        disaster.wait_for_relay_log(HELD, more_than=before[HELD])
        disaster.step("kill the first relay with kill -9")
        before, began_s = counts(disaster), CLOCK.monotonic_s()
        first.kill()
        written = len(disaster.writer.events)
        await_takeover(disaster, before)
        until(
            lambda: len(set(disaster.published_events())) > written,
            "the second relay publishes",
            timeout_s=PATIENCE_S,
        )
        took_s = CLOCK.monotonic_s() - began_s
        print_lines(f"events written after the kill are published: {took_s:.1f} s")
        disaster.towpath("relay", "status")

        disaster.step(
            "the second relay hangs: it keeps its claim until its sessions end"
        )
        before = counts(disaster)
        disaster.start()
        held = disaster.wait_for_relay_log(HELD, more_than=before[HELD])
        before = counts(disaster)
        os.kill(second.pid, signal.SIGSTOP)
        end_sessions(disaster, held["holder"])
        await_takeover(disaster, before)
        before = counts(disaster)
        os.kill(second.pid, signal.SIGCONT)
        disaster.step("the relay that hung continues, and stands by")
        disaster.wait_for_relay_log(HELD, more_than=before[HELD])

        disaster.verify_events()
        disaster.verify()
