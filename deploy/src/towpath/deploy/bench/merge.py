"""
Measure one MERGE of a warehouse table's rows from Parquet into an empty copy.

``python -m towpath.deploy.bench.merge CONFIG SINK REPORT`` starts Spark with the
sink's own settings. The rows are written as Parquet first; only the MERGE is timed. The
result, ``{"rows", "elapsed_s"}``, is written to the file REPORT.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Final

from towpath.schemas.clock import SystemClock
from towpath.settings import Settings, Sink, load
from towpath.sinks.engine.session import Engine, SparkSql, start_session
from towpath.sinks.jars import java, store
from towpath.sinks.kinds import engine_memory, engine_settings
from towpath.sinks.state.declare import sink_named
from towpath.sinks.targets.warehouse.client import CATALOG

_NAME: Final = "merge"
_MERGED: Final = f"{CATALOG}.beside.merged"
# The copy needs only the properties that determine how a table is written.
_KEPT: Final = ("write.", "format-version")
_MERGE: Final = f"""
merge into {_MERGED} t using parquet_rows s on t.id = s.id
when matched then update set * when not matched then insert *
"""


def main(config: Path, name: str, report: Path) -> None:
    """Run the statement, and write the report."""
    settings = load(config, {})
    sink = sink_named(settings, name)
    folder = settings.state_folder / "beside"
    session = start_session(_engine(settings, sink, folder))
    try:
        table = f"{CATALOG}.{sink.route[0].name}"
        rows, elapsed_s = _merge(SparkSql(session), table, folder / "rows")
    finally:
        session.stop()
        shutil.rmtree(folder, ignore_errors=True)
    measured = {"rows": rows, "elapsed_s": elapsed_s}
    report.write_text(json.dumps(measured), encoding="utf-8")


def _engine(settings: Settings, sink: Sink, folder: Path) -> Engine:
    environ = os.environ  # noqa: TID251 - a root
    environ["JAVA_HOME"] = str(java.spark_home(settings.state_folder / "java", environ))
    return Engine(
        name=_NAME,
        jars=tuple(sorted(store.of("spark").glob("*.jar"))),
        folder=folder,
        memory=engine_memory([sink]),
        extra=engine_settings([sink]),
        has_tables=True,
    )


def _merge(spark: SparkSql, table: str, parquet: Path) -> tuple[int, float]:
    """Merge a table's rows into an empty table; return the row count and the time."""
    rows = f"select * from {table}"  # noqa: S608 - our own names
    spark.sql(f"insert overwrite directory '{parquet}' using parquet {rows}")
    read = f"using parquet options (path '{parquet}')"
    spark.sql(f"create temporary view parquet_rows {read}")
    spark.sql(f"create namespace if not exists {CATALOG}.beside")
    like = f"using iceberg tblproperties ({_properties(spark, table)})"
    spark.sql(f"create table {_MERGED} {like} as {rows} limit 0")
    clock = SystemClock()
    began_s = clock.monotonic_s()
    spark.sql(_MERGE)
    elapsed_s = clock.monotonic_s() - began_s
    counted = spark.sql(f"select count(*) as n from {_MERGED}")  # noqa: S608 - likewise
    (count,) = counted.column("n").to_pylist()
    return count, elapsed_s


def _properties(spark: SparkSql, table: str) -> str:
    """Return, as SQL, the properties that determine how a table is written."""
    found = spark.sql(f"show tblproperties {table}").to_pylist()
    kept = (one for one in found if one["key"].startswith(_KEPT))
    return ", ".join(f"'{one['key']}' = '{one['value']}'" for one in kept)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
