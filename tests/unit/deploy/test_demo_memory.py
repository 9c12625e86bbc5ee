"""Which process belongs to which part."""

from towpath.deploy.demo.monitor import OURSELVES, memory_bytes, owner

PARENTS = {10: 1, 20: 10, 21: 20, 22: 21, 30: 10}
NAMES = {20: "serving"}


def test_a_demo_part_owns_its_descendants():
    """
    A process below a part belongs to it, however deep.
    """
    expected = ["serving", "serving", "serving"]
    actual = [owner(pid, PARENTS, NAMES) for pid in (20, 21, 22)]

    assert expected == actual


def test_other_processes_belong_to_the_demo_itself():
    """
    The demo itself and commands that it runs are summed up under its own name.
    """
    expected = [OURSELVES, OURSELVES]
    actual = [owner(pid, PARENTS, NAMES) for pid in (10, 30)]

    assert expected == actual


def test_the_demos_own_memory_is_measured():
    """
    Without any part the memory of this very process is found.
    """
    held = memory_bytes({})

    assert held[OURSELVES] > 1_000_000
