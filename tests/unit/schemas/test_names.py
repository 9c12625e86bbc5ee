"""Names of topics, dispositions of failures, delays and deadlines."""

import pytest

from towpath.schemas import failure, topics
from towpath.schemas.clock import Backoff, Deadline, SystemClock
from towpath.schemas.table_name import TableName, is_quoted_name


class ManualClock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def now(self):
        raise NotImplementedError

    def monotonic_s(self) -> float:
        return self.at_s

    def wait(self, delay_s: float) -> None:
        self.at_s += delay_s


def test_table_topics_have_only_characters_that_kafka_allows():
    """
    Characters that Kafka rejects become underscores.
    """
    assert topics.table_topic("towpath", TableName("my shop", "ordérs")) == (
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
def test_topic_names_are_legal_if_kafka_accepts_them(name: str, legal: bool):
    """
    A name has 1 to 249 characters that Kafka allows, and is not just one or two dots.
    """
    assert legal == topics.is_legal_topic(name)


def test_a_backfill_topic_names_its_sink():
    """
    Rows that are read for one sink have a topic of their own besides the shared one.
    """
    shared = topics.table_topic("towpath", TableName("shop", "orders"))

    assert topics.backfill_topic(shared, "search2") == (
        "towpath.shop.orders.backfill.search2"
    )


NAMES = [
    ("shop.orders", "shop", "orders"),
    ("shop.My Orders", "shop", "My Orders"),
    ('shop.we"ird', "shop", 'we"ird'),
    ('"S.c".orders', "S.c", "orders"),
    ('a."b.c"', "a", "b.c"),
    ('"a.b".c', "a.b", "c"),
    ('"""q".t', '"q', "t"),
    ('"a""b.c"."."', 'a"b.c', "."),
    ("a.b\nc\\|%${}\U0001f600", "a", "b\nc\\|%${}\U0001f600"),
]


@pytest.mark.parametrize(("text", "schema", "table"), NAMES)
def test_a_table_name_has_one_text_and_is_read_back_from_it(text, schema, table):
    """
    Parts are quoted if a dot or a leading quote would make the text ambiguous.
    """
    name = TableName(schema, table)

    assert (text, name) == (name.text, TableName.parse(text))
    assert name == TableName.parse(name.sql)


@pytest.mark.parametrize(
    ("text", "schema", "table"),
    [('"shop"."orders"', "shop", "orders"), ("a.b.c", "a", "b.c")],
)
def test_alternative_texts_of_a_table_name_are_read(text, schema, table):
    """
    Unnecessary quotes are accepted, and an unquoted text is split at its first dot.
    """
    assert TableName(schema, table) == TableName.parse(text)


@pytest.mark.parametrize("text", ["", "orders", ".orders", "shop.", '"a".'])
def test_an_invalid_table_name_is_refused(text):
    """
    A name must have a schema and a table.
    """
    with pytest.raises(ValueError, match=r"is not schema\.table"):
        TableName.parse(text)


@pytest.mark.parametrize(("text", "schema", "table"), NAMES)
def test_an_entry_for_a_table_is_plain_or_quoted(text, schema, table):
    """
    The entry for a name is never taken for a regular expression.
    """
    entry = TableName(schema, table).entry

    assert entry == text == "shop.orders" or is_quoted_name(entry)


@pytest.mark.parametrize("attempt", [0, 1, 5, 100, 100_000])
def test_a_delay_is_between_half_its_bound_and_its_bound(attempt: int):
    """
    This holds despite the jitter, after any number of attempts.
    """
    backoff = Backoff(first_s=0.5, ceiling_s=8.0)

    delay_s = backoff.delay_s(attempt)

    assert backoff.bound_s(attempt) / 2 <= delay_s <= backoff.bound_s(attempt) <= 8.0


def test_a_deadline_bounds_the_sum_of_its_steps():
    """
    Two steps share one limit, and no time is left after it.
    """
    clock = ManualClock()
    deadline = Deadline(clock, 3.0)

    clock.wait(2.0)
    left_s = deadline.remaining_s()
    clock.wait(5.0)

    assert (1.0, 0.0, True) == (left_s, deadline.remaining_s(), deadline.passed())


def test_system_time_has_a_zone_and_advances():
    """
    The wall time has a zone, and the monotonic time advances during a wait.
    """
    clock = SystemClock()
    start_s = clock.monotonic_s()

    clock.wait(0.001)

    assert clock.now().tzinfo is not None
    assert clock.monotonic_s() > start_s


def test_a_configuration_error_lists_every_mistake():
    """
    The message has all mistakes, one per line.
    """
    error = failure.ConfigurationError(["a: missing", "b: unknown key"])

    assert str(error) == "a: missing\nb: unknown key"


def test_a_busy_error_has_the_time_to_wait():
    """
    A busy component is retried after the pause that it requests.
    """
    error = failure.BusyError("full", retry_after_s=5.0)

    assert (failure.Disposition.RETRY, 5.0) == (error.disposition, error.retry_after_s)
