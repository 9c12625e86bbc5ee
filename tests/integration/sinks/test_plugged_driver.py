"""One driver runs the guide's sink, from an installed package, and a webhook."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.webhook_receiver import SECRET, Receiver
from towpath.schemas.clock import SystemClock
from towpath.settings import load
from towpath.sinks.jars import java, store
from towpath.sinks.kinds import kind_of

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(180)]

GUIDE = Path(__file__).parents[3] / "docs/own-sink.md"
PATIENCE_S = 120


def configuration(stack, name: str, folder: Path, url: str) -> str:
    """Write a configuration with both sinks on one topic."""
    return textwrap.dedent(f"""
        version = 1
        state_folder = "state"
        [[source]]
        dsn = "postgresql://unused/shop"
        prefix = "{name}"
        [kafka]
        bootstrap_servers = "{stack.kafka}"
        [registry]
        url = "http://unused"
        [[sink]]
        name = "file"
        kind = "sqlite"
        driver = "own"
        url = "{folder}/rows.db"
        trigger_ms = 100
        [[sink.route]]
        topic = "{name}.shop.orders"
        name = "orders"
        [[sink]]
        name = "partner"
        kind = "webhook"
        driver = "own"
        url = "{url}"
        trigger_ms = 100
        webhook = {{ secrets = ["{SECRET}"] }}
        [[sink.route]]
        topic = "{name}.shop.orders"
        name = "orders"
    """)


def install(folder: Path) -> None:
    """Install the guide's package for the driver."""
    for text in re.findall(r"(?ms)^```python\n(.*?)^```$", GUIDE.read_text()):
        if "ContractSuite" not in text:
            with (folder / "sqlite_sink.py").open("a", encoding="utf-8") as file:
                file.write(text)
    metadata = folder / "towpath_sqlite-0.1.0.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text("Name: towpath-sqlite\nVersion: 0.1.0\n")
    metadata.joinpath("entry_points.txt").write_text(
        "[towpath.sinks]\nsqlite = sqlite_sink:KIND\n"
    )


def produce(stack, name: str) -> None:
    """Produce changes of two orders, one of which is deleted."""
    topic = f"{name}.shop.orders"
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": stack.kafka})
    for number, (key, status) in enumerate([(1, "placed"), (2, "placed"), (1, None)]):
        after = None if status is None else {"order_id": key, "status": status}
        operation = "d" if status is None else "c"
        value = {"before": None, "after": after, "op": operation}
        producer.produce(
            topic,
            json.dumps(value),
            json.dumps({"order_id": key}),
            headers={"position": f"{(number + 1) * 8:016x}.0000000000"},
        )
    producer.flush()


def until(condition) -> None:
    """Wait for a condition, up to a deadline."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not hold in time"
        SystemClock().wait(0.1)


def statuses(rows) -> dict[str, object]:
    """Return the status of each live row, and None for each deleted row."""
    return {row.key: row.fields.get("status") for row in rows}


def test_one_driver_runs_a_packages_sink_and_a_webhook(
    stack, unique, tmp_path, monkeypatch
):
    """
    The package's kind works like a built-in kind; both sinks match the stream.
    """
    install(tmp_path)
    receiver = Receiver()
    config = tmp_path / "towpath.toml"
    config.write_text(configuration(stack, unique, tmp_path, receiver.url))
    produce(stack, unique)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]  # noqa: TID251 - a process
    environment = {
        **os.environ,  # noqa: TID251 - a process of its own
        "JAVA_HOME": str(java.spark_home(tmp_path / "java")),
        "TOWPATH_SPARK_JARS": str(store.of("spark")),
        "PYTHONPATH": ":".join(filter(None, paths)),
    }
    log = tmp_path / "driver.log"
    with log.open("ab") as log_file:
        command = ["-m", "towpath.sinks", "--config", str(config), "--driver", "own"]
        process = subprocess.Popen(
            [sys.executable, *command], env=environment, stderr=log_file
        )
    monkeypatch.syspath_prepend(tmp_path)
    sink = load(config, {}).sink_named("file")
    reader = kind_of(sink).read(sink, unique)
    expected = {"1": None, "2": "placed"}
    try:
        until(lambda: (tmp_path / "rows.db").exists() or process.poll())
        until(lambda: statuses(receiver.rows("orders")) == expected or process.poll())
        until(lambda: statuses(reader.rows("orders")) == expected or process.poll())
        process.send_signal(signal.SIGTERM)
        ended = process.wait(60)
    finally:
        process.kill()
        process.wait(10)
        reader.close()
        receiver.close()

    assert ended == 0, log.read_text()[-3000:]
    assert expected == statuses(receiver.rows("orders"))
