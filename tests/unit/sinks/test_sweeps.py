"""
A sweep takes effect once every partition has delivered it, whatever happens in between.
"""

import orjson
import pytest

from support.copying import replace
from towpath.sinks.apply.sweeps import SWEEPS_FILE, Sweeps
from towpath.sinks.change import Floor, Origin
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.state import incomplete

TOPIC = "towpath.shop.orders"


class Cluster:
    """
    Topics of three partitions.

    With ``is_down``, the broker does not answer; with ``is_late``, it does not know the
    topics yet.
    """

    is_down = is_late = False

    def names(self):
        return [TOPIC]

    def end_offsets(self, names):
        if self.is_down:
            message = "no broker"
            raise BrokerUnavailableError(message)
        if self.is_late:
            return {}
        return {name: dict.fromkeys("012", 7) for name in names}


def sweep_floor(partition, *, number=1, topic=TOPIC, route="orders", partitions=0):
    """Make a partition's floor, with or without the partition count."""
    position = f"{number:016x}.-"
    origin = Origin(topic, partition, 0)
    return Floor(route, position, needs_all=True, origin=origin, partitions=partitions)


@pytest.fixture
def cluster():
    """Return a broker."""
    return Cluster()


@pytest.fixture
def open_sweeps(tmp_path, cluster):
    """Return a function that opens the sink's sweeps, as a start of the driver does."""
    return lambda: Sweeps(tmp_path, "cache", cluster)


def test_a_sweep_waits_for_the_last_partition(open_sweeps):
    """
    Until then, rows that it must spare may still arrive.
    """
    sweeps = open_sweeps()

    assert () == sweeps.record([sweep_floor(0), sweep_floor(0)])
    assert () == sweeps.record([sweep_floor(2)])
    assert (sweep_floor(1),) == sweeps.record([sweep_floor(1)])


def test_the_sweep_of_a_requested_snapshot_completes_the_route(open_sweeps, tmp_path):
    """
    The sweep of a different snapshot does not complete it, nor does a waiting sweep.
    """
    names = ("a/b", ".hidden", "orders")
    for name in names:
        incomplete.begin(tmp_path, "cache", name, "repair-1")
    sweeps = open_sweeps()
    seen = [incomplete.routes(tmp_path, "cache")]
    for snapshot, complete in (
        ("fill-7", names),
        ("repair-1", ()),
        ("repair-1", names),
    ):
        floors = [
            replace(sweep_floor(0, route=r), snapshot_id=snapshot) for r in complete
        ]
        sweeps.mark_applied(floors)
        seen.append(incomplete.routes(tmp_path, "cache"))

    assert [tuple(sorted(names))] * 3 + [()] == seen


def test_sweeps_of_several_snapshots_are_kept_apart(open_sweeps):
    """
    All have the lowest floor, and one must not complete another.
    """
    sweeps = open_sweeps()
    one, other = (
        [replace(sweep_floor(p, number=0), snapshot_id=name) for p in range(3)]
        for name in ("fill-1", "fill-2")
    )

    assert ((), (one[2],)) == (sweeps.record(one[:2]), sweeps.record(one[2:]))
    assert () == sweeps.record([sweep_floor(2), *other[:2]])
    assert (other[2],) == open_sweeps().record(other[2:])


def test_a_topic_without_known_partitions_completes_no_sweep(open_sweeps, cluster):
    """
    A broker may omit the topic for a moment; the batch is retried.
    """
    sweeps = open_sweeps()
    cluster.is_late = True
    with pytest.raises(BrokerUnavailableError, match=f"no partition .*{TOPIC}"):
        sweeps.record([sweep_floor(0)])
    cluster.is_late = False

    assert () == sweeps.record([sweep_floor(0), sweep_floor(1)])
    assert (sweep_floor(2),) == sweeps.record([sweep_floor(2)])


def test_a_sweep_does_not_wait_for_partitions_added_later(open_sweeps):
    """
    It was written to two of three partitions: the third has no row that it spares.
    """
    sweeps = open_sweeps()

    assert () == sweeps.record([sweep_floor(1, partitions=2)])
    assert (sweep_floor(0, partitions=2),) == sweeps.record(
        [sweep_floor(0, partitions=2)]
    )


def test_a_repeated_sweep_of_more_partitions_waits_for_them(open_sweeps):
    """
    The repeated sweep has the newer count; partitions that delivered it still count.
    """
    sweeps = open_sweeps()
    sweeps.record([sweep_floor(0, partitions=2)])

    assert () == sweeps.record([sweep_floor(1, partitions=3)])
    assert (sweep_floor(2, partitions=3),) == sweeps.record(
        [sweep_floor(2, partitions=3)]
    )


def test_a_sweep_with_its_partition_count_needs_no_broker(open_sweeps, cluster):
    """
    The current count is requested only for an older sweep, which has none.
    """
    cluster.is_down = True
    sweeps = open_sweeps()

    assert (sweep_floor(0, partitions=1),) == sweeps.record(
        [sweep_floor(0, partitions=1)]
    )


def test_delivered_sweeps_survive_a_restart(open_sweeps):
    """
    A new driver knows which partitions have delivered the sweep.
    """
    open_sweeps().record([sweep_floor(0), sweep_floor(2)])

    assert (sweep_floor(1),) == open_sweeps().record([sweep_floor(1)])


def test_a_repeated_batch_repeats_its_floor(open_sweeps):
    """
    A crash before the batch was written must not lose the floor.
    """
    open_sweeps().record([sweep_floor(0), sweep_floor(2)])
    open_sweeps().record([sweep_floor(1)])

    assert (sweep_floor(1),) == open_sweeps().record([sweep_floor(1)])


def test_different_sweeps_do_not_complete_each_other(open_sweeps):
    """
    A different floor, route or topic means a different sweep.
    """
    sweeps = open_sweeps()
    sweeps.record([sweep_floor(0), sweep_floor(1)])
    others = [
        sweep_floor(2, number=2),
        sweep_floor(2, route="customers"),
        sweep_floor(2, topic=f"{TOPIC}.backfill.cache"),
    ]

    assert () == sweeps.record(others)
    assert (sweep_floor(2),) == sweeps.record([sweep_floor(2)])


def test_a_complete_sweep_leaves_a_lower_one_of_another_topic(open_sweeps):
    """
    A snapshot's own topic is read later, and its route is incomplete until then.
    """
    own = f"{TOPIC}.backfill.cache"
    lower = [sweep_floor(p, topic=own) for p in range(3)]
    higher = [sweep_floor(p, number=2) for p in range(3)]
    open_sweeps().record(lower[:2])

    assert tuple(higher) == open_sweeps().record(higher)
    assert (lower[2],) == open_sweeps().record(lower[2:])


def test_a_complete_sweep_ends_lower_ones_of_its_topic(open_sweeps):
    """
    The file does not grow with the number of snapshots.
    """
    for number in range(1, 5):
        sweeps = open_sweeps()
        sweeps.mark_applied(
            sweeps.record([sweep_floor(p, number=number) for p in range(3)])
        )

    assert () == open_sweeps().record([sweep_floor(1)])


def test_the_complete_end_of_a_snapshot_is_forgotten(open_sweeps, tmp_path):
    """
    The file does not grow with the number of altered columns either.
    """
    for number in range(3):
        snapshot_id = f"columns {number}"
        ends = [sweep_floor(p, number=0) for p in range(3)]
        sweeps = open_sweeps()
        given = [replace(end, snapshot_id=snapshot_id) for end in ends]
        sweeps.mark_applied(sweeps.record(given))

    path = tmp_path / "sinks" / "cache" / SWEEPS_FILE
    assert {"orders": {}} == orjson.loads(path.read_bytes())


def test_a_sweep_that_completes_with_a_higher_one_is_repeated_with_it(open_sweeps):
    """
    The batch may fail, and its repetition need not have all of its records.
    """
    lower = [sweep_floor(p) for p in range(3)]
    higher = [sweep_floor(p, number=2) for p in range(3)]
    open_sweeps().record([*lower[:2]])
    open_sweeps().record([lower[2], *higher])

    assert (lower[2], *higher) == open_sweeps().record([lower[2], *higher])


def test_the_end_of_a_snapshot_still_waits_after_a_higher_sweep(open_sweeps):
    """
    It has the lowest floor, and only marks that all rows were delivered.
    """
    end = [replace(sweep_floor(p, number=0), snapshot_id="columns") for p in range(3)]
    sweeps = open_sweeps()
    sweeps.record(end[:1])
    sweeps.mark_applied(sweeps.record([sweep_floor(p) for p in range(3)]))

    assert (end[2],) == open_sweeps().record(end[1:])[-1:]


def test_a_truncate_does_not_wait_for_all_partitions(open_sweeps):
    """
    It takes effect immediately, even while a sweep is waiting.
    """
    truncation = replace(sweep_floor(0), needs_all=False)

    assert (truncation,) == open_sweeps().record([truncation, sweep_floor(1)])


def test_without_the_broker_no_sweep_completes_and_none_is_lost(open_sweeps, cluster):
    """
    The number of partitions is not guessed; the batch is retried.
    """
    cluster.is_down = True
    with pytest.raises(BrokerUnavailableError):
        open_sweeps().record([sweep_floor(0), sweep_floor(1), sweep_floor(2)])
    cluster.is_down = False

    assert [sweep_floor(0), sweep_floor(1), sweep_floor(2)] == list(
        open_sweeps().record([sweep_floor(0), sweep_floor(1), sweep_floor(2)])
    )
