"""The assignment of processes to parts."""

from towpath.deploy.demo.monitor import OURSELVES, memory_bytes, owner

PARENTS = {10: 1, 20: 10, 21: 20, 22: 21, 30: 10}
NAMES = {20: "serving"}


def test_a_demo_part_owns_its_descendants():
    """
    All descendants of a part's process belong to the part, at any depth.
    """
    expected = ["serving", "serving", "serving"]
    actual = [owner(pid, PARENTS, NAMES) for pid in (20, 21, 22)]

    assert expected == actual


def test_other_processes_belong_to_the_demo_itself():
    """
    The demo and the commands that it runs are summed under its own name.
    """
    expected = [OURSELVES, OURSELVES]
    actual = [owner(pid, PARENTS, NAMES) for pid in (10, 30)]

    assert expected == actual


def test_the_demos_own_memory_is_measured():
    """
    Without any parts, the memory of this process is reported.
    """
    held = memory_bytes({})

    assert held[OURSELVES] > 1_000_000
