"""A sweep counts once every partition has told it, whatever happens in between."""

import pytest

from towpath.sinks import unfilled
from towpath.sinks.change import Floor, Origin
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.jobs.sweeps import Sweeps

TOPIC = "towpath.shop.orders"


class Cluster:
    """Topics of three partitions; ``is_away`` is a broker that does not answer."""

    is_away = False

    def names(self):
        return [TOPIC]

    def end_offsets(self, names):
        if self.is_away:
            message = "no broker"
            raise BrokerUnavailableError(message)
        return {name: dict.fromkeys("012", 7) for name in names}


def told(partition, *, number=1, topic=TOPIC, route="orders", partitions=0):
    """Make the floor that a partition tells, and maybe how many tell it."""
    position = f"{number:016x}.-"
    origin = Origin(topic, partition, 0)
    return Floor(route, position, needs_all=True, origin=origin, partitions=partitions)


@pytest.fixture
def cluster():
    """Lend a broker."""
    return Cluster()


@pytest.fixture
def open_sweeps(tmp_path, cluster):
    """Give a function that opens the sink's sweeps, as a start of the driver does."""
    return lambda: Sweeps(tmp_path, "cache", cluster)


def test_a_sweep_waits_for_the_last_partition(open_sweeps):
    """Until then rows may come that it must spare."""
    sweeps = open_sweeps()

    assert () == sweeps.counting([told(0), told(0)])
    assert () == sweeps.counting([told(2)])
    assert (told(1),) == sweeps.counting([told(1)])


def test_the_sweep_of_what_was_asked_for_says_that_nothing_lacks(open_sweeps, tmp_path):
    """
    Another snapshot's sweep says nothing of it, nor does one that still waits.
    """
    names = ("a/b", ".hidden", "orders")
    for name in names:
        unfilled.begin(tmp_path, "cache", name, "repair-1")
    sweeps = open_sweeps()
    seen = [unfilled.routes(tmp_path, "cache")]
    for snapshot, complete in (
        ("fill-7", names),
        ("repair-1", ()),
        ("repair-1", names),
    ):
        floors = [told(0, route=r)._replace(snapshot_id=snapshot) for r in complete]
        sweeps.carried_out(floors)
        seen.append(unfilled.routes(tmp_path, "cache"))

    assert [tuple(sorted(names))] * 3 + [()] == seen


def test_ends_without_rows_below_are_of_their_own_snapshot(open_sweeps):
    """All stand at the lowest floor, and one must not complete another."""
    sweeps = open_sweeps()
    one, other = (
        [told(p, number=0)._replace(snapshot_id=name) for p in range(3)]
        for name in ("fill-1", "fill-2")
    )

    assert ((), (one[2],)) == (sweeps.counting(one[:2]), sweeps.counting(one[2:]))
    assert () == sweeps.counting([told(2), *other[:2]])
    assert (other[2],) == open_sweeps().counting(other[2:])


def test_partitions_that_came_after_a_sweep_are_not_waited_for(open_sweeps):
    """
    It was written into two of the three: nothing that it spares stands in the last.
    """
    sweeps = open_sweeps()

    assert () == sweeps.counting([told(1, partitions=2)])
    assert (told(0, partitions=2),) == sweeps.counting([told(0, partitions=2)])


def test_a_sweep_told_once_more_of_more_partitions_waits_for_them(open_sweeps):
    """What was written again knows better; what was told before is not lost."""
    sweeps = open_sweeps()
    sweeps.counting([told(0, partitions=2)])

    assert () == sweeps.counting([told(1, partitions=3)])
    assert (told(2, partitions=3),) == sweeps.counting([told(2, partitions=3)])


def test_a_sweep_that_says_of_how_many_needs_no_broker(open_sweeps, cluster):
    """Only one of before the count was told asks how many there are now."""
    cluster.is_away = True
    sweeps = open_sweeps()

    assert (told(0, partitions=1),) == sweeps.counting([told(0, partitions=1)])


def test_what_was_told_survives_a_restart(open_sweeps):
    """A driver that begins anew knows the partitions that it has passed."""
    open_sweeps().counting([told(0), told(2)])

    assert (told(1),) == open_sweeps().counting([told(1)])


def test_a_batch_that_comes_again_tells_the_same(open_sweeps):
    """A crash before the batch was written must not lose the floor."""
    open_sweeps().counting([told(0), told(2)])
    open_sweeps().counting([told(1)])

    assert (told(1),) == open_sweeps().counting([told(1)])


def test_sweeps_do_not_help_each_other(open_sweeps):
    """Other floors, routes and topics are other sweeps."""
    sweeps = open_sweeps()
    sweeps.counting([told(0), told(1)])
    others = [
        told(2, number=2),
        told(2, route="customers"),
        told(2, topic=f"{TOPIC}.backfill.cache"),
    ]

    assert () == sweeps.counting(others)
    assert (told(2),) == sweeps.counting([told(2)])


def test_a_truncation_does_not_wait(open_sweeps):
    """It counts at once, also beside a sweep that waits."""
    truncation = told(0)._replace(needs_all=False)

    assert (truncation,) == open_sweeps().counting([truncation, told(1)])


def test_without_the_broker_nothing_counts_and_nothing_is_lost(open_sweeps, cluster):
    """How many partitions there are is not guessed; the batch comes again."""
    cluster.is_away = True
    with pytest.raises(BrokerUnavailableError):
        open_sweeps().counting([told(0), told(1), told(2)])
    cluster.is_away = False

    assert [told(0), told(1), told(2)] == list(
        open_sweeps().counting([told(0), told(1), told(2)])
    )
