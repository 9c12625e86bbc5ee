"""What a table of 50 million rows costs, by what a smaller one did. Pure."""

from typing import Final, NamedTuple

ROWS: Final = 50_000_000
_HOUR_S: Final = 3_600
_MICROSECONDS: Final = 1_000_000


class Paper(NamedTuple):
    """Time, processor time and room on the broker's disk, of so many rows."""

    rows: int
    hours: float
    cpu_hours: float
    topic_bytes: float

    def as_json(self) -> dict[str, float]:
        """Return it as JSON takes it."""
        return {
            "rows": self.rows,
            "hours": round(self.hours, 4),
            "cpu_hours": round(self.cpu_hours, 4),
            "topic_bytes": round(self.topic_bytes),
        }


def on_paper(rows_per_s: float, cpu_us_per_row: float, bytes_per_row: float) -> Paper:
    """Return what the large table costs if every row costs what it was seen to."""
    return Paper(
        rows=ROWS,
        hours=ROWS / rows_per_s / _HOUR_S,
        cpu_hours=ROWS * cpu_us_per_row / _MICROSECONDS / _HOUR_S,
        topic_bytes=ROWS * bytes_per_row,
    )
