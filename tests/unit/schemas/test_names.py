"""Names of topics, dispositions of failures, delays and deadlines."""

import pytest

from towpath.schemas import failure, topics
from towpath.schemas.backoff import Backoff
from towpath.schemas.clock import Deadline, SystemClock


class HandClock:
    """A clock that a test turns by hand."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def now(self):
        raise NotImplementedError

    def monotonic_s(self) -> float:
        return self.at_s

    def wait(self, delay_s: float) -> None:
        self.at_s += delay_s


def test_table_topics_hold_only_what_kafka_allows():
    """
    Characters that Kafka refuses become underscores.
    """
    assert topics.table_topic("towpath", "my shop", "ordérs") == (
        "towpath.my_shop.ord_rs"
    )


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("outbox.event.order", True),
        ("a" * 249, True),
        ("a" * 250, False),
        ("", False),
        (".", False),
        ("..", False),
        ("a b", False),
        ("é", False),
        ("a\n", False),
    ],
)
def test_legality_of_topic_names(name: str, legal: bool):
    """
    A name is legal exactly when Kafka would accept it.
    """
    assert legal == topics.is_legal_topic(name)


def test_a_backfill_topic_names_its_sink():
    """
    READ rows for one sink travel beside the shared topic.
    """
    shared = topics.table_topic("towpath", "shop", "orders")

    assert topics.backfill_topic(shared, "search2") == (
        "towpath.shop.orders.backfill.search2"
    )


@pytest.mark.parametrize("attempt", [0, 1, 5, 100, 100_000])
def test_delays_stay_within_half_and_whole_bound(attempt: int):
    """
    Jitter keeps a delay between half its bound and the bound, however many attempts.
    """
    backoff = Backoff(first_s=0.5, ceiling_s=8.0)

    delay_s = backoff.delay_s(attempt)

    assert backoff.bound_s(attempt) / 2 <= delay_s <= backoff.bound_s(attempt) <= 8.0


def test_a_deadline_bounds_the_sum_of_its_steps():
    """
    Two steps share one bound, and nothing is left after it.
    """
    clock = HandClock()
    deadline = Deadline(clock, 3.0)

    clock.wait(2.0)
    left_s = deadline.remaining_s()
    clock.wait(5.0)

    assert (1.0, 0.0, True) == (left_s, deadline.remaining_s(), deadline.passed())


def test_system_time_is_aware_and_moves_on():
    """
    The system's wall time has a zone, and its monotonic time passes while it waits.
    """
    clock = SystemClock()
    start_s = clock.monotonic_s()

    clock.wait(0.001)

    assert clock.now().tzinfo is not None
    assert clock.monotonic_s() > start_s


def test_a_configuration_error_lists_every_mistake():
    """
    All mistakes stand in the message, one a line.
    """
    error = failure.ConfigurationError(["a: missing", "b: unknown key"])

    assert str(error) == "a: missing\nb: unknown key"


def test_a_busy_part_says_how_long_to_wait():
    """
    A part that is busy is retried, after the pause that it asked for.
    """
    error = failure.BusyError("full", retry_after_s=5.0)

    assert (failure.Disposition.RETRY, 5.0) == (error.disposition, error.retry_after_s)
