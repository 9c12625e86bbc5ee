"""The three sinks of a backlog, as a configuration names them: all settings its own."""

from pathlib import Path
from typing import Final

from towpath.loadtests.bench.sinks.plan import CACHE, SEARCH, WAREHOUSE, Targets

ROUTE: Final = "item"
LAKE_TABLE: Final = "bench.item"

_SINK: Final = """
[[sink]]
name = "{name}"
kind = "{name}"
url = "{url}"
{more}
[[sink.route]]
topic = "{topic}"
name = "{route}"
"""


def sink_blocks(topic: str, targets: Targets, folder: Path) -> str:
    """Return the blocks of the three sinks, each with the topic as its one route."""
    lake = f'folder = "{folder / "lake"}"\n'
    told = (
        (CACHE, targets.redis_url, "", ROUTE),
        (SEARCH, targets.opensearch_url, "", ROUTE),
        (WAREHOUSE, targets.catalog_dsn, lake, LAKE_TABLE),
    )
    return "".join(
        _SINK.format(name=name, url=url, more=more, topic=topic, route=route)
        for name, url, more, route in told
    )
