"""
The load: a fixed list of transactions for several writers, generated from a seed.

Every change to a row has its own number, which the row keeps in its column ``change``,
so that each state of a row can be recognized in a topic. A writer owns the keys that it
inserts, updates and deletes. All writers share the hot keys, and a transaction updates
at most one of them, so that transactions never deadlock. The last writer is slow: it
holds each transaction open before it commits, so that others commit in between.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from towpath.loadtests.capture import CREATE, DELETE, UPDATE, RowImage

HOT_KEYS: Final = tuple(range(1, 21))
# Writer n numbers its keys and changes upward from n times this number.
NUMBERS_PER_WRITER: Final = 1_000_000

_SLOW_SHARE: Final = 0.01
_ROLLED_BACK_SHARE: Final = 0.03
_MAX_CHANGES: Final = 3
# A held transaction stays open for longer than the default polling interval.
_HELD_S: Final = (0.15, 0.25)
_INSERT, _UPDATE, _HOT, _DELETE = "insert", "update", "hot", "delete"
_WEIGHTS: Final = {_INSERT: 45, _UPDATE: 25, _HOT: 15, _DELETE: 15}
# Gives a row a typical size.
_NOTE_WIDTH: Final = 120


class RowChange(NamedTuple):
    """One statement: what it does, to which row, and the number of the change."""

    operation: str
    key: int
    number: int

    @property
    def image(self) -> RowImage | None:
        """The row after the change; ``None`` after a delete."""
        return None if self.operation == DELETE else image_of(self.number)


def image_of(number: int) -> RowImage:
    """Return the row that a change produces."""
    return RowImage(number, f"change {number} ".ljust(_NOTE_WIDTH, "."))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTransaction:
    """
    One transaction of one writer.

    Attributes:
        at_s: When it begins, counted from the start of the load; a writer that is late
            begins it immediately.
        changes: Its statements.
        held_s: How long it stays open after its last statement.
        is_rolled_back: Whether it is rolled back instead of committed.
    """

    at_s: float
    changes: tuple[RowChange, ...]
    held_s: float = 0.0
    is_rolled_back: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """
    The whole load.

    Attributes:
        opening: Inserts the hot keys, before the writers begin.
        writers: The transactions of each writer, in order; the last writer is slow.
    """

    opening: PlannedTransaction
    writers: tuple[tuple[PlannedTransaction, ...], ...]

    @property
    def committed(self) -> int:
        """The number of transactions that commit, excluding the opening."""
        return sum(not one.is_rolled_back for each in self.writers for one in each)

    @property
    def duration_s(self) -> float:
        """The time from the start of the load to the last planned end."""
        ends_s = (one.at_s + one.held_s for each in self.writers for one in each)
        return max(ends_s, default=0.0)

    @property
    def late_changes(self) -> frozenset[int]:
        """The numbers of the changes of held transactions."""
        return frozenset(
            change.number
            for each in self.writers
            for one in each
            if one.held_s
            for change in one.changes
        )


def plan_load(
    transactions: int, writers: int, rate_per_s: float, seed: int
) -> LoadPlan:
    """
    Plan the load; the same arguments give the same plan.

    Args:
        transactions: How many transactions, including those that are rolled back.
        writers: How many fast writers; a slow one is added.
        rate_per_s: Transactions per second of all writers together.
        seed: The seed.
    """
    slow = max(1, round(transactions * _SLOW_SHARE))
    duration_s = transactions / rate_per_s
    shares = [(transactions - slow) // writers] * writers
    shares[0] += transactions - slow - sum(shares)
    fast = tuple(
        tuple(_Writer(number, seed).transactions(count, duration_s))
        for number, count in enumerate(shares, start=1)
    )
    held = _Writer(writers + 1, seed).held_transactions(slow, duration_s)
    first = tuple(RowChange(CREATE, key, key) for key in HOT_KEYS)
    return LoadPlan(
        opening=PlannedTransaction(at_s=0.0, changes=first),
        writers=(*fast, tuple(held)),
    )


@dataclass(slots=True)
class _Writer:
    """The plan of one writer so far: its numbers, and its existing keys."""

    number: int
    seed: int
    live: list[int] = field(default_factory=list)
    taken: int = 0
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(f"{self.seed}.{self.number}")
        self.taken = self.number * NUMBERS_PER_WRITER

    def transactions(
        self, count: int, duration_s: float
    ) -> Iterator[PlannedTransaction]:
        """Yield transactions at random times, in order."""
        times_s = sorted(self.random.uniform(0, duration_s) for _ in range(count))
        for at_s in times_s:
            is_rolled_back = self.random.random() < _ROLLED_BACK_SHARE
            kinds = self.random.choices(
                tuple(_WEIGHTS),
                tuple(_WEIGHTS.values()),
                k=self.random.randint(1, _MAX_CHANGES),
            )
            yield self._transaction(at_s, kinds, is_rolled_back=is_rolled_back)

    def held_transactions(
        self, count: int, duration_s: float
    ) -> Iterator[PlannedTransaction]:
        """Yield transactions that are held open; each inserts or updates one row."""
        for number in range(count):
            held_s = self.random.uniform(*_HELD_S)
            kind = self.random.choice((_INSERT, _UPDATE))
            at_s = number * duration_s / count
            yield self._transaction(at_s, [kind], held_s=held_s)

    def _transaction(
        self,
        at_s: float,
        kinds: list[str],
        *,
        held_s: float = 0.0,
        is_rolled_back: bool = False,
    ) -> PlannedTransaction:
        """Make one transaction, which changes no key twice."""
        changes: dict[int, RowChange] = {}
        for kind in kinds:
            change = self._change(kind, changes)
            changes[change.key] = change
        if not is_rolled_back:
            self._apply(changes)
        return PlannedTransaction(
            at_s=at_s,
            changes=tuple(changes.values()),
            held_s=held_s,
            is_rolled_back=is_rolled_back,
        )

    def _change(self, kind: str, others: dict[int, RowChange]) -> RowChange:
        """Make a change to a key that the transaction has not changed yet."""
        self.taken += 1
        if kind == _HOT and not others.keys() & set(HOT_KEYS):
            return RowChange(UPDATE, self.random.choice(HOT_KEYS), self.taken)
        free = [key for key in self.live if key not in others]
        if kind in {_UPDATE, _DELETE} and free:
            operation = UPDATE if kind == _UPDATE else DELETE
            return RowChange(operation, self.random.choice(free), self.taken)
        return RowChange(CREATE, self.taken, self.taken)

    def _apply(self, changes: dict[int, RowChange]) -> None:
        for key, change in changes.items():
            if change.operation == CREATE:
                self.live.append(key)
            elif change.operation == DELETE:
                self.live.remove(key)
