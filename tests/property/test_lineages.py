"""
Random histories of a source (restores, promotions, lost slots) and its relay.

A model of the server and of Kafka drives the real decision. At every start of the relay
it asserts that positions never go back, that every loss is announced, and that nothing
is announced without a cause.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from towpath.relay.recovery import lineage as rules
from towpath.relay.recovery.lineage import (
    Fork,
    Lineage,
    SlotHistory,
    SourceHistory,
    StoredHistory,
)

AT = "2026-01-02T03:04:05+00:00"
BEGINNING_LSN = 400


class Commit(NamedTuple):
    """
    A commit record: its LSN, its own number, and the heartbeat counter after it.

    A heartbeat increments the counter and is not published.
    """

    lsn: int
    number: int
    heartbeat: int
    is_heartbeat: bool


@dataclass(frozen=True)
class Server:
    """A database; ``saved_lsn`` is the slot's position after a crash."""

    system: int = 1
    timeline: int = 1
    forks: tuple[Fork, ...] = ()
    commits: tuple[Commit, ...] = ()
    end_lsn: int = BEGINNING_LSN
    slot_lsn: int | None = None
    saved_lsn: int | None = None
    is_lost: bool = False

    @property
    def heartbeat(self) -> int:
        """The counter in the heartbeat table."""
        return self.commits[-1].heartbeat if self.commits else 0

    def with_slot(self) -> "Server":
        """Create the slot at the end of the log."""
        end = self.end_lsn
        return replace(self, slot_lsn=end, saved_lsn=end, is_lost=False)


@dataclass
class Model:
    """The server, Kafka's contents, and the true history."""

    server: Server = field(default_factory=lambda: Server().with_slot())
    copies: list[Server] = field(default_factory=list)
    commit_count: int = 0
    lineages: tuple[Lineage, ...] = ()
    confirmed: tuple[int, int, int] = (0, 0, 0)
    # The first heartbeat after the last published record, and the highest position
    # published by then.
    following: int | None = None
    published_before: int = 0
    published: dict[int, Commit] = field(default_factory=dict)
    forgiven: set[int] = field(default_factory=set)
    has_cause: bool = False

    # Events of the source ------------------------------------------------------------

    def commit(self, size: int, *, is_heartbeat: bool = False) -> None:
        """Append a commit and some WAL after it."""
        server = self.server
        self.commit_count += 1
        heartbeat = server.heartbeat + is_heartbeat
        new = Commit(server.end_lsn, self.commit_count, heartbeat, is_heartbeat)
        self.server = replace(
            server, commits=(*server.commits, new), end_lsn=server.end_lsn + 8 * size
        )

    def copy(self) -> None:
        """Copy the volume."""
        self.copies.append(replace(self.server, slot_lsn=self.server.saved_lsn))

    def restore(self, which: int) -> None:
        """
        Restore a copy of the volume.

        A heartbeat that was streamed since the copy reveals a restore; where published
        commits would vanish without one, the model does not restore.
        """
        if not self.copies:
            return
        copied = self.copies[which % len(self.copies)]
        kept = {commit.number for commit in copied.commits}
        vanished = {c.number for c in self._ours().values()} - kept
        is_known = self.lineages and self.confirmed[1] >= self.lineages[-1].offset
        if vanished and (not is_known or copied.heartbeat >= self.confirmed[2]):
            return
        self.has_cause |= (copied.commits, copied.timeline) != (
            self.server.commits,
            self.server.timeline,
        )
        self.has_cause |= copied.slot_lsn is None or copied.is_lost
        self.server = copied

    def load_elsewhere(self) -> None:
        """Load a dump into a different server, with a new slot."""
        self.server = Server(system=self.server.system + 1).with_slot()
        self.copies.clear()
        self.has_cause = True

    def idle(self, size: int) -> None:
        """Write WAL that contains no commit of the model."""
        end_lsn = self.server.end_lsn + 8 * size
        self.server = replace(self.server, end_lsn=end_lsn)

    def promote(self, lag: int, idle: int) -> None:
        """Promote a standby that lacks the last commits; its slot is synchronized."""
        old = self.server
        kept = old.commits[: len(old.commits) - lag] if lag else old.commits
        end = (
            old.commits[len(kept)].lsn if len(kept) < len(old.commits) else old.end_lsn
        )
        # The standby may lack the idle end of the WAL too.
        end = max(end - 8 * idle, kept[-1].lsn + 8 if kept else BEGINNING_LSN)
        slot = None if old.saved_lsn is None else min(old.saved_lsn, end)
        fork = Fork(old.timeline, end)
        self.server = replace(
            old,
            timeline=old.timeline + 1,
            forks=(*old.forks, fork),
            commits=kept,
            end_lsn=end,
            slot_lsn=slot,
            saved_lsn=slot,
        )
        self.copies.clear()
        # Without a streamed heartbeat after the last published record, a lost heartbeat
        # may mean that the server went back in time.
        has_lost_heartbeats = any(c.is_heartbeat for c in old.commits[len(kept) :])
        start_lsn = (self.lineages[-1].start_lsn if self.lineages else None) or 0
        from_lsn = max(self._highest() - self._offset() + 8, start_lsn)
        follows = any(c.is_heartbeat and c.lsn >= from_lsn for c in kept)
        self.has_cause |= bool(self.vanished()) or (has_lost_heartbeats and not follows)

    def crash_server(self) -> None:
        """Forget the LSNs confirmed since the slot was last saved."""
        self.server = replace(self.server, slot_lsn=self.server.saved_lsn)

    def save_slot(self) -> None:
        """Make the server save the slot."""
        self.server = replace(self.server, saved_lsn=self.server.slot_lsn)

    def drop_slot(self) -> None:
        """Drop the slot."""
        self.server = replace(self.server, slot_lsn=None, saved_lsn=None)
        self.has_cause = True

    def invalidate_slot(self) -> None:
        """Make the server invalidate the slot."""
        self.server = replace(self.server, is_lost=True)
        self.has_cause = True

    def recreate_slot(self) -> None:
        """
        Drop the slot and recreate it, or advance it: the relay treats both alike.
        """
        self.has_cause |= self.server.end_lsn != self.server.slot_lsn
        self.server = self.server.with_slot()

    # The relay -----------------------------------------------------------------------

    def follow(self, crash_at: int, count: int) -> None:
        """Start the relay; it ends after one of its steps, or after some commits."""
        was_pending = bool(self.lineages) and self.lineages[-1].start_lsn is None
        missing = self.lost() - self.forgiven | self.vanished()
        must_announce = bool(self.lineages) and not was_pending and bool(missing)
        remembered = self._remembered()
        decision = rules.choose_lineage(remembered, self._found(), (), AT)
        reason = decision.gap.reason if decision.gap else None
        assert reason is None or self.has_cause, f"announced without a cause: {reason}"
        assert reason is not None or not must_announce, f"not announced: {missing}"
        self.has_cause = False
        is_moved = decision.is_changed and not decision.is_new
        if is_moved and remembered.has_checkpoint:
            lsn, log_lsn, heartbeat = self.confirmed
            now = decision.confirmed_lsn
            self.confirmed = (now, log_lsn - lsn + now, heartbeat)
        self.lineages = decision.lineages
        if crash_at == 0:
            # A lineage that is left pending may be announced at the next start.
            self.has_cause = decision.lineage.start_lsn is None
            return
        if decision.needs_slot:
            self.server = self.server.with_slot()
        if self.lineages[-1].start_lsn is None:
            if crash_at == 1:
                self.has_cause = True
                return
            begun = replace(self.lineages[-1], start_lsn=self.server.slot_lsn)
            self.lineages = (*self.lineages[:-1], begun)
        self.forgiven = self.lost() | self.forgiven
        if crash_at > 1:
            self.commit(5, is_heartbeat=True)
            self._stream(count, decision.following_heartbeat)

    def _stream(self, count: int, following: int | None) -> None:
        """
        Publish the records that Kafka lacks; without a limit, confirm the end too.
        """
        lineage, has = self.lineages[-1], self._numbers()
        ahead = [c for c in self.server.commits if c.lsn >= (self.server.slot_lsn or 0)]
        for commit in ahead[:count] if count else ahead:
            log_lsn = lineage.offset + commit.lsn
            if commit.is_heartbeat:
                if following is None and log_lsn > self._highest():
                    following = commit.heartbeat
            elif commit.number not in has:
                assert log_lsn > self._highest(), "a position went back"
                self.published[log_lsn] = commit
                following = None
        if not count:
            end = self.server.end_lsn
            heartbeat = self.server.heartbeat
            self.confirmed = (end, lineage.offset + end, heartbeat)
            self.following, self.published_before = following, self._highest()
            self.server = replace(self.server, slot_lsn=end)

    def _remembered(self) -> StoredHistory:
        lsn, log_lsn, heartbeat = self.confirmed
        has = log_lsn > 0
        return StoredHistory(
            self.lineages,
            lsn if has else None,
            log_lsn if has else None,
            self._highest(),
            heartbeat,
            has_records=bool(self.published),
            following_heartbeat=self._following(),
        )

    def _found(self) -> SourceHistory:
        server, slot = self.server, None
        if server.slot_lsn is not None:
            slot = SlotHistory(
                server.slot_lsn, "lost" if server.is_lost else "reserved"
            )
        return SourceHistory(
            str(server.system),
            server.timeline,
            server.forks,
            server.end_lsn,
            slot,
            server.heartbeat,
            "towpath",
        )

    # The true state ------------------------------------------------------------------

    def lost(self) -> set[int]:
        """Return the existing commits that will never be streamed."""
        server = self.server
        slot = server.slot_lsn
        from_lsn = server.end_lsn if slot is None or server.is_lost else slot
        commits = [c for c in server.commits if not c.is_heartbeat]
        unread = {c.number for c in commits if c.lsn < from_lsn}
        return unread - {commit.number for commit in self.published.values()}

    def vanished(self) -> set[int]:
        """Return the published commits of the newest lineage that the server lacks."""
        return self._numbers() - {commit.number for commit in self.server.commits}

    def _numbers(self) -> set[int]:
        return {commit.number for commit in self._ours().values()}

    def _ours(self) -> dict[int, Commit]:
        offset = self._offset()
        return {at: c for at, c in self.published.items() if at >= offset}

    def _offset(self) -> int:
        return self.lineages[-1].offset if self.lineages else 0

    def _following(self) -> int | None:
        is_known = self._highest() == self.published_before
        return self.following if is_known else None

    def _highest(self) -> int:
        return max(self.published, default=0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(1, 50)),
        st.tuples(st.just("follow"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("follow"), st.just(3), st.just(0)),
        st.tuples(st.just("copy")),
        st.tuples(st.just("restore"), st.integers(0, 3)),
        st.tuples(st.just("promote"), st.integers(0, 4), st.integers(0, 60)),
        st.tuples(st.just("idle"), st.integers(1, 50)),
        st.sampled_from(
            [
                ("load_elsewhere",),
                ("crash_server",),
                ("save_slot",),
                ("drop_slot",),
                ("invalidate_slot",),
                ("recreate_slot",),
            ]
        ),
    ),
    max_size=25,
)


def run_steps(steps: list[tuple]) -> Model:
    """
    Run the model through the steps, with a complete run of the relay before and after.
    """
    model = Model()
    for name, *arguments in [("follow", 3, 0), *steps, ("follow", 3, 0)]:
        getattr(model, name)(*arguments)
    return model


# The new lineage has no checkpoint yet when its slot is on a different timeline.
@example(
    [
        *[("follow", 3, 0), ("follow", 3, 0), ("load_elsewhere",)],
        *[("commit", 50), ("commit", 50), ("recreate_slot",)],
        *[("follow", 3, 1), ("promote", 0, 0), ("follow", 0, 0)],
    ]
)
# The new timeline begins below the start of a lineage that has no checkpoint yet.
@example([("drop_slot",), ("follow", 2, 1), ("promote", 1, 1), ("follow", 0, 0)])
@given(STEPS)
def test_positions_never_go_back_and_every_gap_is_announced(steps: list[tuple]):
    """
    In any history, each loss is announced, and nothing is announced without a cause.
    """
    model = run_steps(steps)

    assert sorted(model.published) == list(model.published)


@pytest.mark.parametrize(
    ("defect", "steps"),
    [
        (
            "_timeline_reasons",
            [
                *[("commit", 1), ("commit", 1), ("follow", 3, 2)],
                *[("promote", 2, 0), ("commit", 9)],
            ],
        ),
        (
            "_rollback_reasons",
            [("copy",), ("commit", 1), ("follow", 3, 0), ("restore", 0)],
        ),
        ("_slot_reasons", [("commit", 1), ("drop_slot",)]),
        ("_slot_reasons", [("commit", 1), ("recreate_slot",)]),
    ],
)
def test_the_model_fails_if_the_decision_ignores_a_cause(
    monkeypatch, defect: str, steps: list[tuple]
):
    """
    The model fails for each kind of cause that the decision ignores.
    """
    monkeypatch.setattr(rules, defect, lambda _known, _found: iter(()))
    with pytest.raises(AssertionError, match=r"not announced|went back"):
        run_steps(steps)


def test_the_model_fails_if_a_new_lineage_keeps_its_offset(monkeypatch):
    """
    A new lineage without a higher offset would publish positions that go back.
    """
    original = rules._new_lineage

    def kept(*arguments):
        decision = original(*arguments)
        lineage = replace(decision.lineage, offset=0)
        return replace(decision, lineages=(*decision.lineages[:-1], lineage))

    monkeypatch.setattr(rules, "_new_lineage", kept)
    with pytest.raises(AssertionError, match="went back"):
        run_steps([("commit", 9), ("follow", 3, 0), ("load_elsewhere",), ("commit", 9)])
