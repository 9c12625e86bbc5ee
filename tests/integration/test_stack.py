"""The local stack: its parts are started, killed, repaired and stopped."""

import json
import os
import shutil
import signal
import socket
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from towpath.deploy.local import lifecycle, process, servers
from towpath.deploy.local.lifecycle import PartState
from towpath.deploy.local.part import StateFolder
from towpath.deploy.local.stack import NAMES, Addresses, Stack
from towpath.sinks.errors import JarsError
from towpath.sinks.jars import store

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.fixture
def state_folder() -> Iterator[Path]:
    """Provide an empty state folder whose stack is purged at the end."""
    folder = Path(tempfile.mkdtemp(prefix="towpath-test-stack-"))
    (folder / "owner").write_text(str(os.getpid()), encoding="utf-8")
    yield folder
    Stack(folder).purge()
    shutil.rmtree(folder)


def _kill(stack: Stack, name: str) -> int:
    """Kill a part as a crash would, and return its pid."""
    found = process.find(stack.state.process_file(name))
    assert found is not None
    found.kill()
    pid: int = found.pid
    return pid


def _request(url: str, method: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, body, method=method)  # noqa: S310 - ours
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310 - ours
        body_read: bytes = response.read()
        return body_read


def _write_everywhere(addresses: Addresses) -> None:
    """Write one durable value to every part."""
    with psycopg.connect(addresses.dsn("shop")) as connection:
        connection.execute("create table kept (id int)")
        connection.execute("insert into kept values (7)")
    admin = AdminClient({"bootstrap.servers": addresses.kafka})
    for future in admin.create_topics([NewTopic("kept", 1, 1)]).values():
        future.result(20)
    producer = Producer({"bootstrap.servers": addresses.kafka, "acks": "all"})
    producer.produce("kept", b"7")
    assert producer.flush(20) == 0
    _request(
        f"{addresses.registry_url}/subjects/kept/versions",
        "POST",
        b'{"schema": "\\"string\\""}',
    )
    _request(f"{addresses.opensearch_url}/kept/_doc/7?refresh=true", "PUT", b"{}")
    with redis.Redis.from_url(addresses.redis_url) as cache:
        cache.set("kept", "7")
        # Wait until the file has the value: it is synced once per second.
        cache.execute_command("WAITAOF", 1, 0, 5000)


def _read_everywhere(addresses: Addresses) -> dict[str, object]:
    """Read the values back from the parts."""
    with psycopg.connect(addresses.dsn("shop")) as connection:
        rows = connection.execute("select id from kept").fetchall()
    consumer = Consumer(
        {
            "bootstrap.servers": addresses.kafka,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["kept"])
    message = consumer.poll(30)
    consumer.close()
    with redis.Redis.from_url(addresses.redis_url, decode_responses=True) as cache:
        cached = cache.get("kept")
    subjects = _request(f"{addresses.registry_url}/subjects", "GET")
    document = f"{addresses.opensearch_url}/kept/_count"
    return {
        "postgres": rows,
        "kafka": message.value() if message else None,
        "registry": subjects,
        "opensearch": b'"count":1' in _request(document, "GET"),
        "redis": cached,
    }


def test_killed_parts_are_repaired_with_their_data(state_folder: Path) -> None:
    """
    If all parts were killed, ``up`` restarts them on the same ports, with their data.
    """
    stack = Stack(state_folder)
    before = stack.up()
    _write_everywhere(before)
    dead = {name: _kill(stack, name) for name in NAMES}

    after = stack.up()

    assert before == after
    assert all(part.pid != dead[part.name] for part in stack.status())
    expected = {
        "postgres": [(7,)],
        "kafka": b"7",
        "registry": b'["kept"]',
        "opensearch": True,
        "redis": "7",
    }

    assert expected == _read_everywhere(after)


def test_only_a_measured_broker_is_optimized(tmp_path: Path) -> None:
    """
    Other stacks are short-lived: Java's second compiler would cost more than it saves.
    """
    state = StateFolder(tmp_path)
    usual = servers.kafka_part(state, 1, 2).command
    measured = servers.kafka_part(state, 1, 2, is_optimized=True).command

    assert ["-XX:TieredStopAtLevel=1"] == [x for x in usual if x not in measured]
    assert len(measured) == len(usual) - 1


def test_up_does_not_restart_running_parts(state_folder: Path) -> None:
    """
    After a second ``up``, every part has the same process.
    """
    stack = Stack(state_folder)
    stack.up(["postgres", "redis"])
    before = [part.pid for part in stack.status()]

    stack.up(["postgres", "redis"])

    assert before == [part.pid for part in stack.status()]


@pytest.mark.parametrize(
    "port_name",
    [
        pytest.param("redis", marks=pytest.mark.soak),
        "kafka",
        pytest.param("kafka-controller", marks=pytest.mark.soak),
    ],
)
def test_a_port_that_is_taken_before_the_start_is_replaced(
    state_folder: Path, port_name: str
) -> None:
    """
    If a different process listens on the port of a part, the part gets a new port.
    """
    stack, part = Stack(state_folder), port_name.partition("-")[0]
    with socket.socket() as taken:

        def take_port(name: str, state: str) -> None:
            if (name, state) == (part, "starting") and taken.getsockname()[1] == 0:
                chosen = json.loads((state_folder / "stack/ports.json").read_text())
                taken.bind(("127.0.0.1", chosen[port_name]))
                taken.listen()

        addresses = stack.up([part], report=take_port)
        port = taken.getsockname()[1]
        chosen = json.loads((state_folder / "stack/ports.json").read_text())

    states = {status.name: status for status in stack.status()}
    assert (PartState.READY, True) == (states[part].state, port > 0)
    assert port != chosen[port_name]
    assert chosen[part] == getattr(addresses, f"{part}_port")


def test_a_part_that_hangs_is_restarted(state_folder: Path) -> None:
    """
    ``up`` replaces a part that is running but does not respond.
    """
    stack = Stack(state_folder)
    stack.up(["redis"])
    found = process.find(stack.state.process_file("redis"))
    assert found is not None
    found.suspend()

    stack.up(["redis"])

    states = {part.name: part for part in stack.status()}
    assert found.pid != states["redis"].pid

    assert PartState.READY == states["redis"].state


def test_up_waits_for_a_broker_that_recovers(state_folder: Path) -> None:
    """
    A killed broker may exceed its startup time as long as it makes progress.
    """
    stack = Stack(state_folder)
    admin = AdminClient({"bootstrap.servers": stack.up(["kafka"]).kafka})
    for future in admin.create_topics([NewTopic("kept", 100, 1)]).values():
        future.result(20)
    _kill(stack, "kafka")
    log = stack.state.log("kafka")
    before = log.stat().st_size
    [part] = [part for part in stack.parts() if part.name == "kafka"]

    started = lifecycle.bring_up(replace(part, ready_within_s=0.2), stack.state)

    printed = log.read_bytes()[before:]
    assert started
    assert b"Recovering 100 logs" in printed or b"unclean" in printed, printed[-3000:]
    assert len(admin.list_topics("kept", timeout=20).topics["kept"].partitions) == 100


def test_down_leaves_no_process_and_keeps_the_data(state_folder: Path) -> None:
    """
    After ``down``, no process of the stack is left; the next ``up`` finds the data.
    """
    stack = Stack(state_folder)
    addresses = stack.up(["postgres", "redis"])
    with psycopg.connect(addresses.dsn("shop")) as connection:
        connection.execute("create table kept (id int)")
    processes = [
        member
        for name in ("postgres", "redis")
        if (leader := process.find(stack.state.process_file(name)))
        for member in [leader, *leader.children(recursive=True)]
    ]

    stack.down()

    assert len(processes) > len(NAMES)
    assert not [p for p in processes if p.is_running() and p.status() != "zombie"]
    stack.up(["postgres"])
    with psycopg.connect(addresses.dsn("shop")) as connection:
        rows = connection.execute("select count(*) from kept").fetchall()

    assert [(0,)] == rows


def test_two_stacks_are_independent(state_folder: Path) -> None:
    """
    Two stacks have their own ports and data, and purging one does not stop the other.
    """
    first, second = Stack(state_folder / "one"), Stack(state_folder / "two")
    one = first.up(["postgres", "redis"])
    two = second.up(["postgres", "redis"])
    with psycopg.connect(one.dsn("shop")) as connection:
        connection.execute("create table here (id int)")

    first.purge()

    with psycopg.connect(two.dsn("shop")) as connection:
        found = connection.execute("select to_regclass('here')").fetchone()
    states = [part.state for part in second.status()]
    second.purge()
    assert one.redis_port != two.redis_port
    assert states.count(PartState.READY) == 2

    assert (None,) == found


def test_a_pid_that_was_reused_by_a_different_process_is_never_killed(
    state_folder: Path,
) -> None:
    """
    A process file is ignored if its pid now belongs to a different process.
    """
    stack = Stack(state_folder)
    stack.up(["redis"])
    stack.down()
    other = psutil.Popen(["sleep", "60"], start_new_session=True)
    stack.state.process_file("redis").write_text(f"{other.pid} 1 boot\n", "utf-8")

    stack.down()

    alive = other.poll() is None
    other.send_signal(signal.SIGKILL)
    other.wait()

    assert alive


def test_a_truncated_archive_is_reported(
    state_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The error for a truncated Java archive names the file.
    """
    jar = next(jar for jar in store.read_lock() if jar.use == "kafka")
    copy = state_folder / "jars"
    shutil.copytree(store.folder() / "kafka", copy / "kafka")
    os.truncate(copy / "kafka" / jar.file, jar.size_bytes - 1)
    monkeypatch.setenv("TOWPATH_JARS", str(copy))

    with pytest.raises(JarsError, match=jar.file) as caught:
        store.of("kafka")

    assert "missing or truncated" in str(caught.value)
