"""
Beside the warehouse: one MERGE of the same rows from Parquet, in a session of its own.

What stands in the sink's table is written as Parquet, then merged into an empty table
with the same columns and properties, by an engine with the same settings.
"""

import json
from typing import Final

from towpath.loadtests.bench.clients import Client
from towpath.loadtests.bench.errors import BenchError
from towpath.loadtests.bench.figures import Figures
from towpath.loadtests.bench.plan import Bench
from towpath.loadtests.bench.sinks.backlog import Backlog
from towpath.loadtests.bench.sinks.plan import WAREHOUSE, Targets

# A busy machine takes minutes to start the engine.
_LEAST_WITHIN_S: Final = 600.0
_SLOWEST_PER_S: Final = 2_000


def measure(bench: Bench, backlog: Backlog, targets: Targets) -> Figures:
    """
    Have the MERGE done, and return how fast it was.

    Raises:
        BenchError: It was not carried out, or has left other rows.
    """
    report = bench.place.folder / "merge.json"
    words = (*targets.merge, str(backlog.config), WAREHOUSE, str(report))
    bench.screen.begin("one MERGE", 0)
    with Client(bench.place, "merge", words) as client:
        client.wait(_LEAST_WITHIN_S + backlog.rows / _SLOWEST_PER_S)
    told = json.loads(report.read_text(encoding="utf-8"))
    if told["rows"] != backlog.rows:
        message = f"the MERGE has left {told['rows']:,} of {backlog.rows:,} rows"
        raise BenchError(message)
    return {"rows_per_s": told["rows"] / told["elapsed_s"]}
