"""
When a table is to be compacted, and by which statements. Pure.

Every commit adds a file or two and a list of replaced rows, and a reader opens them
all. There is one writer, so compaction runs between its batches and never meets one.
"""

from typing import Final

from towpath.sinks.warehouse.catalog import CATALOG
from towpath.sinks.warehouse.tables import LakeName, literal

# Reading a table of this many files more than after its last compaction costs about a
# second; compacting takes 2 to 5 s. Half as many would compact twice as often for a
# few tenths of a second of reading; at twice as many, readers and merges slow down.
FILES_BEFORE_COMPACTION: Final = 48

_FILE_COUNTS: Final = ("total-data-files", "total-delete-files")


class Compaction:
    """Remembers how many files each table had after its last compaction."""

    def __init__(self) -> None:
        self._floor: dict[LakeName, int] = {}
        self._count: dict[LakeName, int] = {}

    def note(self, name: LakeName, summary: dict[str, str]) -> None:
        """Take in what a commit left behind."""
        self._count[name] = sum(int(summary.get(key, 0)) for key in _FILE_COUNTS)

    def settle(self, name: LakeName, summary: dict[str, str]) -> None:
        """Take in what a compaction left behind."""
        self.note(name, summary)
        self._floor[name] = self._count[name]

    def due(self) -> LakeName | None:
        """Return the table that has grown most, if it has grown enough."""
        growth = {n: c - self._floor.get(n, 0) for n, c in self._count.items()}
        name = max(growth, key=lambda n: growth[n], default=None)
        if name is None or growth[name] < FILES_BEFORE_COMPACTION:
            return None
        return name


def statements(name: LakeName) -> list[str]:
    """
    Return the statements that compact a table and forget its old versions.

    Small files are put together, and larger ones written anew once a tenth of their
    rows is replaced.
    """
    table = f"table => {literal(name.in_catalog)}"
    options = "'delete-ratio-threshold', '0.1', 'remove-dangling-deletes', 'true'"
    return [
        f"CALL {CATALOG}.system.rewrite_data_files({table}, options => map({options}))",
        f"CALL {CATALOG}.system.rewrite_position_delete_files({table})",
        f"CALL {CATALOG}.system.expire_snapshots({table})",
    ]
