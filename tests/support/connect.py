"""Kafka Connect with stock connectors, as a process: an unmodified reader of topics."""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from support.rig import Rig
from support.stopping import stop
from towpath.deploy.bench.runner import connect_command
from towpath.deploy.local import ports
from towpath.sinks.jars import java, store

JSON_WITH_SCHEMAS = {
    f"{side}.converter{option}": value
    for side in ("key", "value")
    for option, value in (
        ("", "org.apache.kafka.connect.json.JsonConverter"),
        (".schemas.enable", "true"),
    )
}

# The transformation that keeps the new row of an envelope, and a delete's tombstone.
UNWRAPPED = {
    "transforms": "unwrap",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.unwrap.delete.tombstone.handling.mode": "tombstone",
}


def jdbc_sink(rig: Rig, table: str, name: str, **more: str) -> dict[str, str]:
    """Return the settings of a stock JDBC sink; its table has the given name."""
    parts = conninfo_to_dict(rig.dsn)
    return {
        "name": name,
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "topics": rig.topic(table),
        "connection.url": (
            f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}"
        ),
        "connection.username": str(parts["user"]),
        "connection.password": "none",
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "primary.key.mode": "record_key",
        "schema.evolution": "basic",
        "collection.name.format": name,
        **more,
    }


@contextlib.contextmanager
def connected(
    kafka: str, folder: Path, connectors: Sequence[Mapping[str, str]]
) -> Iterator[Path]:
    """
    Run Connect standalone with connectors for the block.

    Args:
        kafka: Kafka's bootstrap servers.
        folder: The folder for its files.
        connectors: The connectors' settings, including their names.

    Yields:
        The file with Connect's output.
    """
    worker = {
        **JSON_WITH_SCHEMAS,
        "plugin.discovery": "hybrid_warn",
        "bootstrap.servers": kafka,
        "consumer.auto.offset.reset": "earliest",
        "consumer.metadata.max.age.ms": "1000",
        "listeners": f"http://127.0.0.1:{ports.any_free()}",
        "offset.storage.file.filename": str(folder / "connect.offsets"),
    }
    files = [_written(folder / "worker.properties", worker)]
    files += [_written(folder / f"{one['name']}.properties", one) for one in connectors]
    log = folder / "connect.log"
    command = [*connect_command(java.home(), _archives()), *map(str, files)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield log
        finally:
            stop(process, 30.0)


def _archives() -> list[Path]:
    folder = store.folder(os.environ)  # noqa: TID251 - a root
    jars = store.read_lock(store.LOCK.with_name("jdbcsink.lock"))
    missing = [jar.file for jar in jars if not store.is_complete(jar, folder)]
    assert [] == missing, "make test fetches these archives"
    return [folder / jar.use / jar.file for jar in jars]


def _written(path: Path, settings: Mapping[str, str]) -> Path:
    lines = (f"{name}={value}\n" for name, value in settings.items())
    path.write_text("".join(lines), encoding="utf-8")
    return path


def rows_of(
    rig: Rig, table: sql.Identifier, columns: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Read a table in the order of its keys; a missing table is empty."""
    if rig.one("select to_regclass(%s)", table.as_string()) is None:
        return []
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    query = sql.SQL("select {} from {} order by id").format(names, table)
    return rig.connection.execute(query).fetchall()
