"""What is measured: the systems, the two loads, and one run of them."""

import enum
from dataclasses import dataclass
from typing import Final

from towpath.loadtests.bench.plan import (
    DEBEZIUM_STOCK,
    DEBEZIUM_TUNED,
    RELAY,
    Run,
)

CASE: Final = "million_rows"
ROWS: Final = 1_000_000
UPDATES_PER_S: Final = 200
TABLE: Final = "bench.item"

# The server's COPY of the table to a client that throws it away.
COPY: Final = "copy"
# Tuned, without writing watermarks to the source; the initial snapshot in chunks, with
# several threads.
DEBEZIUM_READ_ONLY: Final = "debezium_read_only"
DEBEZIUM_INITIAL: Final = "debezium_initial"

_OTHERS: Final = (
    DEBEZIUM_STOCK,
    DEBEZIUM_TUNED,
    DEBEZIUM_READ_ONLY,
    DEBEZIUM_INITIAL,
)


class Load(enum.StrEnum):
    """What happens to the table while it is read."""

    UPDATES = "updates"
    QUIET = "quiet"


@dataclass(frozen=True, slots=True, kw_only=True)
class FillRun(Run):
    """One system in one round under one load; database, slot and topics are its own."""

    load: Load

    @property
    def topic(self) -> str:
        """Where a system puts the table's rows and changes."""
        return f"{self.name}.{TABLE}"

    @property
    def is_initial(self) -> bool:
        """Whether the system reads the table before it follows it."""
        return self.system == DEBEZIUM_INITIAL


def systems(*, with_debezium: bool) -> tuple[str, ...]:
    """Return the systems of a benchmark."""
    return (COPY, RELAY, *(_OTHERS if with_debezium else ()))
