"""Topics that gain partitions or are deleted while the relay runs, and the repair."""

import contextlib
import io
import json
from collections import defaultdict
from collections.abc import Iterable

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, NewPartitions

from support.copying import replace
from support.waiting import until
from towpath.cli import app as root
from towpath.relay.encode.record import partition_of

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

SMALL = "select id from shop.line where length(note) < 1000"
# The client learns of added partitions at once, as after any reconnect.
FAST_REFRESH = 'client = {"topic.metadata.refresh.interval.ms" = "100"}'


def command(faults, *args: str) -> tuple[int, str]:
    """Run a command of the relay; return its exit code and its output."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = root.run([*args, "--config", str(faults.relay.config)])
    return code, output.getvalue()


def add_partitions(faults, count: int, *names: str) -> None:
    """Raise the partition count of topics, as an operator would."""
    wanted = [NewPartitions(f"{faults.relay.prefix}.{name}", count) for name in names]
    admin = AdminClient({"bootstrap.servers": faults.relay.kafka})
    for future in admin.create_partitions(wanted).values():
        future.result(20)


def delete_topic(faults, topic: str) -> None:
    """Delete a topic, and wait until it no longer exists."""
    admin = AdminClient({"bootstrap.servers": faults.relay.kafka})
    admin.delete_topics([topic])[topic].result(20)
    until(lambda: topic not in faults.relay.topics(), "the topic is deleted")


def streamed(messages: Iterable[Message]) -> list[tuple[str, int, bytes | None]]:
    """Return position, partition and key of each streamed record."""
    found = []
    for message in messages:
        found_headers = dict(message.headers() or ())
        if "position" in found_headers and "snapshot" not in found_headers:
            at = found_headers["position"].decode(), message.partition()
            found.append((*at, message.key()))
    return found


def split_at_barriers(
    messages: Iterable[Message],
) -> tuple[list[Message], list[Message]]:
    """Split records into those before and after the barrier of their partition."""
    sides: tuple[list[Message], list[Message]] = ([], [])
    has_passed: dict[int, bool] = defaultdict(bool)
    for message in messages:
        if "towpath-partition-count" in dict(message.headers() or ()):
            has_passed[message.partition()] = True
        else:
            sides[has_passed[message.partition()]].append(message)
    return sides


def check_counts(messages: Iterable[Message], old: int, new: int) -> None:
    """Fail unless each side of the barriers uses its own partition count."""
    before, after = split_at_barriers(messages)
    assert streamed(before), "no record before the barriers"
    assert streamed(after), "no record after the barriers"
    for side, count in ((before, old), (after, new)):
        wrong = [
            (position, partition)
            for position, partition, key in streamed(side)
            if key is not None and partition_of(key, count) != partition
        ]
        assert wrong == [], count


def ids_in_source(faults) -> set[int]:
    """Return the keys of the source's rows that are small enough for a topic."""
    return {row[0] for row in faults.source.execute(SMALL)}


def ids_in_topic(faults) -> set[int]:
    """Return the keys in the topic that have not been deleted."""
    live: dict[bytes, bytes | None] = {}
    for message in faults.relay.records("shop.line"):
        live[message.key() or b""] = message.value()
    keys = [json.loads(key) for key, value in live.items() if key and value]
    return {key.get("payload", key)["id"] for key in keys}


def test_added_partitions_get_no_record_before_the_operator_decides(faults):
    """
    The relay halts and moves no key; after a repair, it uses the new partitions.

    Every change is then published once, and each partition is in order.
    """
    faults.prepare(kafka=FAST_REFRESH)
    faults.writer.write(3)
    process = faults.relay.start()
    faults.await_confirmed(faults.relay, faults.end())
    names = ("order", "shop.line")
    with faults.load(2):
        add_partitions(faults, 8, *names)
        assert process.wait(60) == 3
        log_record = faults.relay.logged("relay halted")[-1]
        assert "changed from 3 to 8 partitions" in log_record["reason"]
        assert "towpath relay state repair" in log_record["remedy"]
        beyond = {m.partition() for m in faults.relay.records(*names)} - {0, 1, 2}
        assert beyond == set()
        assert faults.relay.start().wait(60) == 3
        code, text = command(faults, "relay", "state", "repair", "--yes")
        assert (code, "keys change partitions" in text) == (0, True), text
        faults.relay.start()
        until(
            lambda: (
                {m.partition() for m in faults.relay.records(*names)} > set(range(4))
            ),
            "added partitions have records",
        )
        # Kill it while records of both partition counts may be in flight.
        faults.relay.kill()
        faults.relay.start()
    lsn = faults.end()
    faults.witness.start()
    faults.await_confirmed(faults.relay, lsn)
    faults.await_confirmed(faults.witness, lsn)
    ours, theirs = faults.relay.streamed(), faults.witness.streamed()
    faults.check_order(ours)

    assert {replace(r, partition=0) for r in ours} == {
        replace(r, partition=0) for r in theirs
    }

    for name in names:
        check_counts(faults.relay.records(name), 3, 8)


def test_a_deleted_topic_is_reported_and_recreated_by_the_repair(faults):
    """
    The relay halts; the repair recreates the topic, and requests a snapshot.

    The topic is deleted while the relay is stopped, and then while it runs.
    """
    faults.prepare()
    faults.writer.write(3)
    faults.relay.start()
    faults.await_confirmed(faults.relay, faults.end())
    topic = f"{faults.relay.prefix}.shop.line"
    for is_running in (False, True):
        process = faults.relay.processes[-1]
        if not is_running:
            assert faults.relay.stop(process) == 0
        delete_topic(faults, topic)
        faults.writer.write()
        if not is_running:
            process = faults.relay.start()
        assert process.wait(60) == 3
        assert faults.relay.start().wait(60) == 3
        log_record = faults.relay.logged("relay halted")[-1]
        assert f"topic {topic} no longer exists: it had" in log_record["reason"]
        assert "towpath relay state repair" in log_record["remedy"]
        assert topic not in faults.relay.topics()
        code, text = command(faults, "relay", "state", "repair", "--yes")
        assert (code, "requests snapshots of shop.line" in text) == (0, True)
        # The topic keeps its old count, even if the file now sets a different one.
        settings = faults.relay.config.read_text(encoding="utf-8")
        other = settings.replace("partitions = 3", "partitions = 5")
        faults.relay.config.write_text(other, encoding="utf-8")
        faults.relay.start()
        faults.await_confirmed(faults.relay, faults.end())
        until(
            lambda: ids_in_topic(faults) >= ids_in_source(faults),
            "the topic has all rows",
        )

        assert faults.relay.topics()[topic] == 3
