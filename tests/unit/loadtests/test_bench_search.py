"""The search for Debezium's best settings."""

from collections import Counter

from towpath.loadtests.bench.relay import search

START = {"batch": "8", "linger": "5", "compression": "lz4"}
CHANGES = ({"batch": "2"}, {"batch": "16"}, {"linger": "0"}, {"compression": "none"})
# The factor by which each setting changes the rate.
GAIN = {"batch=16": 1.2, "linger=0": 0.7, "compression=none": 1.1}


def rate(settings):
    """Return the rate with some settings."""
    found = 100.0
    for name, value in settings.items():
        found *= GAIN.get(f"{name}={value}", 1.0)
    return found


def test_improvements_are_kept_and_other_changes_are_not():
    """
    Each change is tried on the best settings so far.
    """
    tried = []
    found = search(START, CHANGES, rate, lambda *one: tried.append(one))

    assert found == {"batch": "16", "linger": "5", "compression": "none"}
    assert [{}, {"batch": "2"}, {"batch": "16"}] == [
        changed for changed, _ in tried[:3]
    ]
    assert tried[3][0] == {"batch": "16", "linger": "0"}


def test_a_gain_within_the_noise_is_not_kept():
    """
    Settings that no change clearly beats are kept, and are not measured again.
    """
    calls = Counter()

    def measure(settings):
        calls["measured"] += 1
        return 102.0 if settings["batch"] == "16" else 100.0

    found = search(START, CHANGES, measure, lambda *_: None)

    assert (START, 1 + len(CHANGES)) == (found, calls["measured"])


def test_one_lucky_run_decides_nothing():
    """
    At the end, the first and the best settings are measured again.
    """
    seen = Counter()

    def measure(settings):
        """Be fast once with a batch of 16, and slow afterwards."""
        seen[settings["batch"]] += 1
        return {"16": 150.0 if seen["16"] == 1 else 90.0}.get(settings["batch"], 100.0)

    found = search(START, CHANGES[:2], measure, lambda *_: None)

    assert found == START
