"""Snapshots of a relay process, requested through its signal table."""

import json
from typing import Any

from support.rig import Rig


class SnapshotRig(Rig):
    """A database whose relay takes snapshots."""

    def signal(
        self, signal_id: str, kind: str = "execute-snapshot", **data: Any
    ) -> None:
        """Insert a signal into the relay's own table."""
        self.execute(
            "insert into towpath.signal (id, type, data) values (%s, %s, %s)",
            *(signal_id, kind, json.dumps(fields(data))),
        )

    def answer(self, signal_id: str) -> tuple[str, dict[str, Any]]:
        """Return a signal's status and detail."""
        rows = self.execute(
            "select coalesce(status, ''), coalesce(detail, '{}') from towpath.signal"
            " where id = %s",
            signal_id,
        )
        return (rows[0][0], rows[0][1]) if rows else ("gone", {})

    def wait_for_answer(self, signal_id: str, *statuses: str) -> dict[str, Any]:
        """
        Wait until a signal has one of the statuses, and return its detail.

        The wait fails immediately if the signal has failed or been rejected, but not if
        it is incomplete or stopped: the snapshot may have just been resumed.
        """
        ends = statuses or ("completed",)
        final = {"completed", "failed", "rejected", *ends}
        self.wait_for(lambda: self.answer(signal_id)[0] in final)
        status, detail = self.answer(signal_id)
        assert status in ends, detail
        return detail

    def handled_rows(self) -> int:
        """Return how many rows the snapshots have delivered or dropped."""
        return self.one("select coalesce(sum(rows + dropped), 0) from towpath.snapshot")

    def catch_up(self) -> None:
        """Wait until Kafka has everything committed, and all snapshots have ended."""
        self.confirm()
        unfinished = (
            "select exists (select from towpath.snapshot"
            " where state in ('queued', 'running'))"
        )
        self.wait_for(lambda: not self.one(unfinished))


def fields(data: dict[str, Any]) -> dict[str, Any]:
    """Return a signal's fields, with dashes instead of underscores in their names."""
    return {name.replace("_", "-"): value for name, value in data.items()}
