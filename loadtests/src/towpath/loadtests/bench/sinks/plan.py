"""What is measured: the cases, the sinks, the goals, and where the targets are."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

CHECKOUT: Final = "checkout"
CATCH_UP: Final = "catch_up"

CACHE: Final = "cache"
SEARCH: Final = "search"
WAREHOUSE: Final = "warehouse"
SINKS: Final = (CACHE, SEARCH, WAREHOUSE)

ROWS: Final = 2_000_000

# From the commit to the first read that finds it, at the 99th percentile.
BUDGETS_MS: Final[Mapping[str, float]] = MappingProxyType(
    {CACHE: 1_000.0, SEARCH: 2_000.0, WAREHOUSE: 30_000.0}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """
    Where the three targets are.

    Attributes:
        redis_url: The cache's server, which must be empty.
        opensearch_url: The index's server.
        catalog_dsn: The database of the warehouse's catalog.
        pids: The server's process of each sink; the warehouse has none of its own.
        merge: The words that run the MERGE beside the warehouse; the configuration, the
            sink and a report's path are to follow.
    """

    redis_url: str
    opensearch_url: str
    catalog_dsn: str
    pids: Mapping[str, int]
    merge: tuple[str, ...]
