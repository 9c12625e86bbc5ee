"""
Killed at random moments under load, the relay loses nothing and repeats nothing.

The seed is printed, so that a failed run can be repeated as far as time allows. Each
kill is counted by whether it met a relay that streamed or one that was starting: both
must have happened, or the test has shown nothing.
"""

from random import Random

import pytest

from towpath.schemas.clock import SystemClock

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

CLOCK = SystemClock()
KILLS = [
    pytest.param(6, id="few kills"),
    pytest.param(30, marks=pytest.mark.soak, id="many kills"),
]
STOPS = [
    pytest.param(4, id="few stops"),
    pytest.param(20, marks=pytest.mark.soak, id="many stops"),
]
EVERYTHING = """
[relay.transactions]
metadata = true
[relay.messages]
publish = true
"""


@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.parametrize("delivery", ["idempotent", "transactional"])
def test_random_kills_lose_and_repeat_nothing(faults, delivery, kills):
    """
    Some kills follow right after one another, while two writers go on (A96, B1, B57).
    """
    seed = Random().randrange(10**6)  # noqa: S311 - no secret
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    random = Random(seed)  # noqa: S311 - no secret
    faults.prepare(relay=f'delivery = "{delivery}"', sections=EVERYTHING)
    streaming = 0
    with faults.load():
        for number in range(kills):
            before = len(faults.relay.logged("relay streaming"))
            faults.relay.start()
            # However slow the machine is, every other one has got as far.
            if number % 2:
                faults.relay.wait_for(
                    lambda n=before: len(faults.relay.logged("relay streaming")) > n
                )
            # However fast it is, the first one is killed before it streams.
            CLOCK.wait(random.uniform(0, 0.8) if number else 0)
            faults.relay.kill()
            streaming += len(faults.relay.logged("relay streaming")) > before
        faults.relay.start()
    count = faults.reckon()

    assert (True, True) == (0 < streaming < kills, count > 60 * kills)


def _started(faults) -> list:
    return faults.relay.logged("relay started")


@pytest.mark.parametrize("stops", STOPS)
def test_stopped_gracefully_under_load_nothing_comes_twice(faults, stops):
    """
    Stopped at random moments of the load, it ends well; nothing is lost or repeated.
    """
    seed = Random().randrange(10**6)  # noqa: S311 - no secret
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    random = Random(seed)  # noqa: S311 - no secret
    faults.prepare(sections=EVERYTHING)
    codes = []
    with faults.load():
        for number in range(stops):
            if number == stops // 2:
                faults.source.execute(
                    "insert into shop.line select 10000000 + n, repeat('z', 300), 1"
                    " from generate_series(1, 20000) n"
                )
            faults.relay.start()
            # Until then a signal ends Python itself, and nothing has begun.
            begun = number + 1
            faults.relay.wait_for(lambda n=begun: len(_started(faults)) >= n)
            CLOCK.wait(random.uniform(0, 1.3))
            codes.append(faults.relay.stop())
        faults.relay.start()
    faults.reckon()

    assert [0] * stops == codes
