"""When a start makes sure that it sees what a dead process left behind."""

from types import SimpleNamespace

import pytest

from towpath.relay import assembly
from towpath.relay.marks import Confirmed
from towpath.relay.state import State
from towpath.settings import DeliveryMode

UNCLEAN = Confirmed(8, 8, 8, 0, is_clean=False, at="")
CLEAN = UNCLEAN._replace(is_clean=True)
BARRIER, NOTED, NOTHING = ["barrier"], ["noted"], []


@pytest.mark.parametrize(
    ("confirmed", "replicas", "delivery", "expected"),
    [
        (UNCLEAN, 2, DeliveryMode.IDEMPOTENT, BARRIER),
        (None, 2, DeliveryMode.IDEMPOTENT, BARRIER),
        (CLEAN, 2, DeliveryMode.IDEMPOTENT, NOTED),
        (UNCLEAN, 1, DeliveryMode.IDEMPOTENT, NOTHING),
        (CLEAN, 1, DeliveryMode.IDEMPOTENT, NOTHING),
        (UNCLEAN, 2, DeliveryMode.TRANSACTIONAL, NOTHING),
    ],
)
def test_barriers_are_written_after_an_unclean_stop(
    monkeypatch, confirmed, replicas, delivery, expected
):
    """
    A clean stop is noted as used up instead, before anything can be left behind again.
    """
    done: list[str] = []
    counts = {"t": 3} if replicas > 1 else {}
    monkeypatch.setattr(assembly, "replicated", lambda *_: counts)
    monkeypatch.setattr(
        assembly,
        "write_barriers",
        lambda _, of: done.append("barrier" * (of == counts)),
    )

    class Topic:
        def __init__(self, *_: object) -> None: ...

        def write(self, key: str, document: dict[str, object]) -> None:
            assert (key, document["is_clean"]) == ("confirmed", False)
            done.append("noted")

    monkeypatch.setattr(assembly, "StateTopic", Topic)
    settings = SimpleNamespace(
        relay=SimpleNamespace(delivery=delivery),
        topics=SimpleNamespace(replication_factor=replicas),
        database=SimpleNamespace(prefix="p"),
        kafka=None,
    )
    attempt = assembly.Attempt(SimpleNamespace(settings=settings), lambda: False)
    attempt._cover(State(confirmed=confirmed))

    assert expected == done
