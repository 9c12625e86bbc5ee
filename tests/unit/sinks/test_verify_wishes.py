"""How a verification is asked for: samples, routes, and passes without end."""

import pytest

from towpath.schemas.failure import UsageError
from towpath.settings import Kafka, Registry, Route, Settings, Sink, SinkKind, Source
from towpath.sinks.verify.__main__ import on_and_on
from towpath.sinks.verify.report import Verdict
from towpath.sinks.verify.routes import chosen_routes
from towpath.sinks.verify.sample import sample_size

ROUTES = (
    Route(topic="towpath.shop.orders", name="o"),
    Route(topic="towpath.shop.lines", name="l"),
)
SINK = Sink(name="it", kind=SinkKind.CACHE, url="redis://x", route=ROUTES)
SETTINGS = Settings(
    version=1,
    source=(Source(dsn="postgresql://x/y", tables=("shop.orders", "shop.lines")),),
    kafka=Kafka(bootstrap_servers="x"),
    registry=Registry(url="x"),
    sink=(SINK,),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("1", 1),
        ("5000", 5000),
        ("5%", 0.05),
        ("0.1%", 0.001),
        ("100%", None),
    ],
)
def test_a_sample_is_a_number_or_a_percentage(text, expected):
    """Rows as such, percentages as a part of one; all of them is no sample."""
    assert expected == sample_size(text)


@pytest.mark.parametrize("text", ["0", "-1", "0%", "101%", "5%5", "many", "nan", "1.5"])
def test_what_is_no_sample_is_refused(text):
    """It is named in the sentence."""
    with pytest.raises(UsageError, match=text):
        sample_size(text)


@pytest.mark.parametrize(
    ("names", "expected"),
    [((), "ol"), (("l",), "l"), (("shop.orders",), "o"), (("o", "shop.lines"), "ol")],
)
def test_routes_are_chosen_by_name_or_table(names, expected):
    """In the order in which they are declared."""
    chosen = chosen_routes(SETTINGS, SINK, names)

    assert expected == "".join(route.name for route in chosen)


def test_a_route_that_is_not_there_is_refused():
    """A typing mistake verifies nothing, and must not look as if it had."""
    with pytest.raises(UsageError, match="no route and no table named shop"):
        chosen_routes(SETTINGS, SINK, ("o", "shop.order"))


class Clock:
    """A clock that is interrupted at the third wait."""

    def __init__(self):
        self.waits_s = []
        self.time_s = 0.0

    def monotonic_s(self):
        self.time_s += 2.0
        return self.time_s

    def wait(self, delay_s):
        self.waits_s.append(delay_s)
        if len(self.waits_s) == 3:
            raise KeyboardInterrupt


def test_pass_after_pass_the_worst_counts():
    """A pass begins so often, or at once if the one before took longer."""
    verdicts = iter([Verdict.EQUAL, Verdict.DIFFERENT, Verdict.UNVERIFIED])
    clock = Clock()

    assert (Verdict.DIFFERENT, [3.0, 3.0, 3.0]) == (
        on_and_on(lambda: next(verdicts), 5.0, clock),
        clock.waits_s,
    )


def test_a_pass_that_takes_long_is_followed_at_once():
    """Nobody waits for a time that is over."""
    clock = Clock()
    on_and_on(lambda: Verdict.EQUAL, 1.0, clock)

    assert clock.waits_s == [0.0, 0.0, 0.0]
