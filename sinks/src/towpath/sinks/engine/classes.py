"""
``python -m towpath.sinks.engine.classes``: record the archive of Spark's classes.

Java loads and verifies about 20,000 classes before a driver writes its first batch,
which is most of the work of starting a driver. One engine is started and used in the
same way as a driver's; when it ends, Java writes its loaded classes into one file.
Every engine with these jars then maps the file (``towpath.sinks.jars.java``). The file
is optional: without it, engines start more slowly.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from towpath.sinks.jars import java, store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_HEAP: Final = "1g"
# Writing the file takes 10 s on an idle machine.
_WRITTEN_WITHIN_S: Final = 300
_CATALOG: Final = "towpath_classes"
_ROWS: Final = 100
# No broker listens there; the connector gives up after loading its classes.
_NO_BROKER: Final = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "kafka.default.api.timeout.ms": "500",
    "kafka.request.timeout.ms": "400",
    "subscribe": "none",
}


def ensure(report: Callable[[str], None]) -> Path | None:
    """
    Record the archive unless it exists; return it, or None if Java cannot write it.

    Args:
        report: Called with a line before the archive is recorded.
    """
    archive = java.spark_classes()
    if archive.exists():
        return archive
    report("writing Spark's class archive, so that drivers start faster")
    _write_base_archive(java.home())
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        recorded = Path(scratch) / archive.name
        args = (sys.executable, "-m", __spec__.name, str(recorded), scratch)
        try:
            subprocess.run(
                args, capture_output=True, check=True, timeout=_WRITTEN_WITHIN_S
            )
        except subprocess.SubprocessError:
            return None
        # Without its base archive, Java exits with 0 and writes nothing.
        if not recorded.exists():
            return None
        for former in archive.parent.glob("spark-*.jsa"):
            former.unlink(missing_ok=True)
        return recorded.replace(archive)


def _write_base_archive(java_home: Path) -> None:
    """Write the archive of Java's own classes, which the packaged Java lacks."""
    if not (java_home / "lib" / "server" / "classes.jsa").exists():
        args = (str(java_home / "bin" / "java"), "-Xshare:dump")
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(args, capture_output=True, check=False, timeout=60)


def record(archive: Path, folder: Path) -> None:
    """
    Start an engine, use it as drivers do, and have Java write its classes as it exits.

    Args:
        archive: The file to write.
        folder: A folder for the engine's temporary files.

    Raises:
        EngineDiedError: The engine did not start.
    """
    # Spark takes seconds to import; a process that finds the archive needs none of it.
    from towpath.sinks.engine import session  # noqa: PLC0415

    environ = os.environ  # noqa: TID251 - the root of this process
    environ["JAVA_HOME"] = str(java.spark_home(folder / "java"))
    environ["PYSPARK_PYTHON"] = sys.executable
    jars = tuple(sorted(store.of("spark").glob("*.jar")))
    options = (
        f"{session.JAVA_OPTIONS} {session.FIRST_COMPILER_ONLY}"
        f" -XX:ArchiveClassesAtExit={archive} -Xlog:disable"
    )
    extra = {**_catalog(folder), "spark.driver.extraJavaOptions": options}
    spark = session.start_session(
        session.Engine("towpath-classes", jars, folder, _HEAP, extra, has_tables=True)
    )
    rows = spark.range(_ROWS).selectExpr("id % 10 as k", "cast(id as string) v")
    rows.groupBy("k").count().toArrow()
    rows.mapInArrow(_unchanged, rows.schema).collect()
    table = f"{_CATALOG}.d.t"
    spark.sql(f"create table {table} (k bigint, v string) using iceberg")
    rows.writeTo(table).append()
    rows.dropDuplicates(["k"]).createOrReplaceTempView("changes")
    spark.sql(
        f"merge into {table} t using changes c on t.k = c.k"
        " when matched and c.k % 2 = 0 then delete"
        " when matched then update set v = c.v when not matched then insert *"
    )
    with suppress(Exception):
        spark.read.format("kafka").options(**_NO_BROKER).load().collect()
    stream = spark.readStream.format("rate").load().writeStream
    stream = stream.foreachBatch(_count)
    stream = stream.option("checkpointLocation", str(folder / "checkpoint"))
    stream.trigger(availableNow=True).start().awaitTermination()
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - no public API
    spark.stop()
    if gateway is not None:
        # The process ends when its standard input closes, and then writes the archive.
        gateway.proc.stdin.close()
        gateway.proc.wait(_WRITTEN_WITHIN_S)


def _catalog(folder: Path) -> dict[str, str]:
    name = f"spark.sql.catalog.{_CATALOG}"
    return {
        name: "org.apache.iceberg.spark.SparkCatalog",
        f"{name}.type": "hadoop",
        f"{name}.warehouse": str(folder / "tables"),
    }


def _unchanged(batches: "Iterable[pa.RecordBatch]") -> "Iterable[pa.RecordBatch]":
    yield from batches


def _count(batch: "DataFrame", _number: int) -> None:
    batch.count()


def main(args: list[str]) -> int:
    """Record the archive, or do the work of the process that records it."""
    if args:
        record(Path(args[0]), Path(args[1]))
    elif ensure(lambda line: print(line, flush=True)) is None:
        print("Java wrote no class archive: drivers will start more slowly")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
