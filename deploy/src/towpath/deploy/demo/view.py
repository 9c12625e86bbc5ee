"""What the live screen shows, as values. ``measure`` fills them, ``screen`` draws."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartView:
    """One process of the demo; ``restarts`` counts how often it was started again."""

    name: str
    state: str
    pid: int | None
    memory_bytes: int
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class SinkView:
    """One sink: what its query does and how far it is behind."""

    name: str
    state: str
    lag_records: int
    rows: int
    last_batch_ms: int


@dataclass(frozen=True, slots=True)
class SnapshotView:
    """One table of one snapshot, on its way."""

    snapshot_id: str
    collection: str
    target: str | None
    state: str
    rows: int
    dropped: int
    estimated_rows: int
    elapsed_s: float

    @property
    def share(self) -> float:
        """How much is done, as far as the estimate goes; 1 only when completed."""
        if self.state == "completed":
            return 1.0
        done = self.rows + self.dropped
        return min(0.999, done / self.estimated_rows) if self.estimated_rows else 0.0

    @property
    def rows_per_s(self) -> float:
        """Rows delivered a second until now."""
        return self.rows / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def eta_s(self) -> float | None:
        """Seconds left at the present rate; nothing to say before the first rows."""
        if self.state != "running" or not self.rows_per_s:
            return None
        left = max(0, self.estimated_rows - self.rows - self.dropped)
        return left / self.rows_per_s


@dataclass(frozen=True, slots=True)
class Rates:
    """How much happens a second: in the shop, in its tables, in its outbox."""

    checkouts_per_s: float = 0.0
    changes_per_s: float = 0.0
    events_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One look at everything."""

    step: str
    elapsed_s: float
    parts: tuple[PartView, ...] = ()
    sinks: tuple[SinkView, ...] = ()
    snapshots: tuple[SnapshotView, ...] = ()
    rates: Rates = Rates()

    @property
    def memory_bytes(self) -> int:
        """What all processes hold together."""
        return sum(part.memory_bytes for part in self.parts)
