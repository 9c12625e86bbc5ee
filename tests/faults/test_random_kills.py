"""
A relay that is killed at random moments under load loses and repeats nothing.

The seed is printed, so that a failed run can be repeated as far as timing allows. Some
kills must hit a streaming relay and some a starting one; otherwise the test fails.
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
    Some kills come in quick succession, while two writers continue (A96, B1, B57).
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
            # However slow the machine is, every other relay streams before its kill.
            if number % 2:
                faults.relay.wait_for(
                    lambda n=before: len(faults.relay.logged("relay streaming")) > n
                )
            # However fast the machine is, the first relay is killed before it streams.
            CLOCK.wait(random.uniform(0, 0.8) if number else 0)
            faults.relay.kill()
            streaming += len(faults.relay.logged("relay streaming")) > before
        faults.relay.start()
    count = faults.finish_and_compare()

    assert (True, True) == (0 < streaming < kills, count > 60 * kills)


def _started(faults) -> list:
    return faults.relay.logged("relay started")


@pytest.mark.parametrize("stops", STOPS)
def test_graceful_stops_under_load_lose_and_repeat_nothing(faults, stops):
    """
    The relay stops at random moments under load, each time with exit code 0.
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
            # Before this log record, a signal would end Python without a graceful stop.
            started = number + 1
            faults.relay.wait_for(lambda n=started: len(_started(faults)) >= n)
            CLOCK.wait(random.uniform(0, 1.3))
            codes.append(faults.relay.stop())
        faults.relay.start()
    faults.finish_and_compare()

    assert [0] * stops == codes
