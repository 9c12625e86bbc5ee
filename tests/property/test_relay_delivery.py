"""The delivery ledger for every order of acknowledgements."""

from hypothesis import given
from hypothesis import strategies as st

from support.relay_bench import Acknowledged
from towpath.relay.publish.in_flight import Delivery, DeliveryLedger, PartitionBatch


def acknowledge(delivery: Delivery) -> None:
    """Acknowledge a batch of one record."""
    batch = PartitionBatch(delivery.ledger, ("t", 0), [delivery], 0, b"p")
    batch.acknowledge(None, Acknowledged())


@given(st.lists(st.integers(0, 4), max_size=12), st.data())
def test_the_acknowledged_lsn_is_the_contiguous_prefix(sizes: list[int], draw):
    """
    The LSN covers only transactions before the first missing acknowledgement.
    """
    ledger = DeliveryLedger(0)
    pending = []
    for number, size in enumerate(sizes):
        delivery = ledger.begin()
        for _ in range(size):
            delivery.expect(b"x")
            pending.append((number, delivery))
        ledger.commit((number + 1) * 8)
    order = draw.draw(st.permutations(pending))
    left = list(sizes)
    seen, expected = [], []
    for number, delivery in order:
        acknowledge(delivery)
        left[number] -= 1
        done = next((at for at, count in enumerate(left) if count), len(left))
        seen.append(ledger.acknowledged())
        expected.append(done * 8)

    assert expected == seen


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("transaction"), st.integers(0, 3)),
        st.tuples(st.just("acknowledge"), st.integers(0, 30)),
        st.tuples(st.just("keepalive"), st.just(0)),
        st.tuples(st.just("begin"), st.just(0)),
        st.tuples(st.just("row"), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_no_history_confirms_an_unacknowledged_transaction(steps: list):
    """
    The LSN never passes an open or unsettled transaction, even with keepalives.
    """
    history = History()
    for kind, number in steps:
        getattr(history, kind)(number)

        assert history.ledger.acknowledged() <= history.safe_lsn()


class History:
    """A stream made of steps, with its own record of the safe LSN."""

    def __init__(self) -> None:
        self.ledger = DeliveryLedger(0)
        self.lsn = 0
        self.pending: list[tuple[int, object]] = []
        self.open = None
        self.open_from = 0

    def safe_lsn(self) -> int:
        """Return the start of the first transaction that must not be confirmed."""
        starts = [start for start, _ in self.pending]
        if self.open is not None:
            starts.append(self.open_from)
        return min(starts, default=self.lsn)

    def transaction(self, rows: int) -> None:
        """Stream a whole transaction, ending an open one first."""
        self.begin(0)
        for _ in range(rows):
            self.row(0)
        self._commit()

    def begin(self, _number: int) -> None:
        """Begin a transaction, ending an open one first."""
        if self.open is not None:
            self._commit()
        self.open_from = self.lsn
        self.open = self.ledger.begin()

    def row(self, _number: int) -> None:
        """Stream a row of the open transaction, if there is one."""
        if self.open is not None:
            self.open.expect(b"x")
            self.pending.append((self.open_from, self.open))

    def acknowledge(self, number: int) -> None:
        """Acknowledge some record in flight."""
        if self.pending:
            _, delivery = self.pending.pop(number % len(self.pending))
            acknowledge(delivery)

    def keepalive(self, _number: int) -> None:
        """Report the server's read position, beyond everything streamed."""
        if self.open is None:
            self.lsn += 8
        self.ledger.idle_until(self.lsn + (8 if self.open is not None else 0))

    def _commit(self) -> None:
        self.lsn += 16
        self.ledger.commit(self.lsn)
        self.open = None
