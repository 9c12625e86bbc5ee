"""The options of a verification: samples, routes, and repeated passes."""

import math

import orjson
import pytest

from towpath.schemas.failure import UsageError
from towpath.settings import Kafka, Registry, Route, Settings, Sink, SinkKind, Source
from towpath.sinks.errors import SourceUnavailableError, UnreadableProgressError
from towpath.sinks.verify.__main__ import (
    SinkVerifier,
    VerifyOptions,
    chosen_sinks,
    verify,
    verify_repeatedly,
)
from towpath.sinks.verify.errors import NotAtRestError
from towpath.sinks.verify.report import Verdict, sample_size
from towpath.sinks.verify.routes import chosen_routes

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
    """
    A number counts rows, a percentage is a fraction; 100% means no sampling.
    """
    assert expected == sample_size(text)


@pytest.mark.parametrize(
    "text", ["0", "-1", "0%", "101%", "5%5", "many", "nan", "nan%", "1.5"]
)
def test_an_invalid_sample_is_refused(text):
    """
    The message contains the invalid text.
    """
    with pytest.raises(UsageError, match=text):
        sample_size(text)


@pytest.mark.parametrize(
    ("names", "expected"),
    [((), "ol"), (("l",), "l"), (("shop.orders",), "o"), (("o", "shop.lines"), "ol")],
)
def test_routes_are_chosen_by_name_or_table(names, expected):
    """
    They keep the order of their declaration.
    """
    chosen = chosen_routes(SETTINGS, SINK, names)

    assert expected == "".join(route.name for route in chosen)


@pytest.mark.parametrize("name", [".a.b", "a.", '"a'])
def test_a_name_that_cannot_be_a_table_is_an_unknown_route(name):
    """
    The name may be a typing error.
    """
    with pytest.raises(UsageError, match="has no route or table named"):
        chosen_routes(SETTINGS, SINK, (name,))


def test_an_unknown_route_is_refused():
    """
    A typing error verifies nothing, and must not look like success.
    """
    with pytest.raises(UsageError, match="no route or table named shop"):
        chosen_routes(SETTINGS, SINK, ("o", "shop.order"))


@pytest.mark.parametrize(
    ("name", "why"),
    [("nothing", "no sink is named nothing"), ("hooks", "hooks cannot be read back")],
)
def test_a_sink_that_cannot_be_verified_is_refused_before_any_is_compared(name, why):
    """
    A comparison may take hours, and its result would be lost.
    """
    hooks = SINK.model_copy(update={"name": "hooks", "kind": SinkKind.WEBHOOK})
    settings = SETTINGS.model_copy(update={"sink": (SINK, hooks)})
    options = VerifyOptions()

    assert ("it",) == chosen_sinks(settings, (), options)
    assert ("it",) == chosen_sinks(settings, ("it", "it"), options)
    with pytest.raises(UsageError, match=why):
        chosen_sinks(settings, ("it", name), options)


@pytest.mark.parametrize("every_s", [0.0, -1.0, math.nan, math.inf, 1e9])
def test_an_invalid_period_is_refused(every_s):
    """
    Passes would run without a pause, or the pause would raise an error.
    """
    with pytest.raises(UsageError, match=r"--every must be above 0 and at most 604800"):
        chosen_sinks(SETTINGS, ("it",), VerifyOptions(every_s=every_s))


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


def unexpected(failure):
    """Raise a failure, which the passes must not report."""
    raise failure


def passes(*outcomes):
    """Make a function that returns a verdict, or raises a failure, at each pass."""
    waiting = iter(outcomes)

    def once():
        outcome = next(waiting)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return once


@pytest.mark.parametrize(
    ("others", "worst"),
    [
        ((Verdict.EQUAL, Verdict.EQUAL), Verdict.UNVERIFIED),
        ((Verdict.DIFFERENT, Verdict.EQUAL), Verdict.DIFFERENT),
    ],
)
@pytest.mark.parametrize("kind", [NotAtRestError, UnreadableProgressError])
def test_an_outage_does_not_end_the_passes(others, worst, kind):
    """
    A failed pass is reported, proves nothing, and is followed by others.
    """
    failure = kind("not at rest: the relay is gone")
    reported = []

    def report_failure(why):
        reported.append(str(why))
        return Verdict.UNVERIFIED

    once = passes(others[0], failure, others[1])
    found = verify_repeatedly(once, report_failure, 5.0, Clock())

    assert (worst, ["not at rest: the relay is gone"]) == (found, reported)


def test_a_configuration_error_ends_the_passes():
    """
    Waiting does not correct a configuration.
    """
    once = passes(Verdict.EQUAL, UsageError("no such route"))

    with pytest.raises(UsageError, match="no such route"):
        verify_repeatedly(once, unexpected, 5.0, Clock())


def verifier_of(every_s=None, sample="", *, as_json=True):
    """Make a verifier of the sink."""
    return SinkVerifier(
        SETTINGS, SINK, VerifyOptions(as_json, sample=sample, every_s=every_s)
    )


def test_a_script_gets_an_outage_as_a_line(capsys):
    """
    The line reports the pass as unverified, with the reason.
    """
    verdict = verifier_of(5.0, "5%").report_failure(
        NotAtRestError("not at rest: nobody reads")
    )
    (line,) = capsys.readouterr().out.splitlines()
    document = orjson.loads(line)

    reason = "not at rest: nobody reads", NotAtRestError.remedy

    assert (Verdict.UNVERIFIED, "unverified", *reason, "5%") == (
        verdict,
        *(document[name] for name in ("result", "error", "remedy", "sample")),
    )


def test_a_person_gets_an_outage_as_a_sentence(capsys):
    """
    The sentence contains the remedy, and no empty table precedes it.
    """
    verifier_of(5.0, as_json=False).report_failure(
        NotAtRestError("not at rest: nobody reads")
    )

    assert capsys.readouterr().out == (
        "it could not be verified: not at rest: nobody reads. "
        f"{NotAtRestError.remedy}\n"
    )


def test_an_interrupted_first_pass_proves_nothing():
    """
    A sink is not reported as equal without a comparison.
    """

    def interrupted():
        raise KeyboardInterrupt

    assert Verdict.UNVERIFIED is verify_repeatedly(
        interrupted, unexpected, 5.0, Clock()
    )


@pytest.fixture
def unreachable(tmp_path):
    """Return the configuration of a sink whose source is down."""
    config = tmp_path / "towpath.toml"
    config.write_text(
        'version = 1\n[[source]]\ndsn = "postgresql://127.0.0.1:1/x"\n'
        'tables = ["shop.orders"]\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n'
        '[registry]\nurl = "http://127.0.0.1:1"\n[[sink]]\nname = "it"\n'
        'kind = "cache"\nurl = "redis://127.0.0.1:1"\n[[sink.route]]\n'
        'topic = "towpath.shop.orders"\nname = "o"\n'
    )
    return config


def test_a_script_gets_a_document_for_an_unreachable_source(unreachable, capsys):
    """
    The exit code is the same, and the reason is in the document.
    """
    code = verify(unreachable, "it", VerifyOptions(as_json=True))
    document = orjson.loads(capsys.readouterr().out)

    assert (3, "unverified", [], True) == (
        code,
        *(document[name] for name in ("result", "routes")),
        "cannot be read" in document["error"],
    )


def test_a_person_gets_an_error_for_an_unreachable_source(unreachable, capsys):
    """
    It has a remedy, like the errors of every command.
    """
    with pytest.raises(SourceUnavailableError, match="cannot be read"):
        verify(unreachable, "it", VerifyOptions())

    assert not capsys.readouterr().out


def test_the_worst_pass_counts_in_repeated_passes():
    """
    A pass begins at each interval, or immediately if the previous one took longer.
    """
    verdicts = iter([Verdict.EQUAL, Verdict.DIFFERENT, Verdict.UNVERIFIED])
    clock = Clock()

    assert (Verdict.DIFFERENT, [3.0, 3.0, 3.0]) == (
        verify_repeatedly(lambda: next(verdicts), unexpected, 5.0, clock),
        clock.waits_s,
    )


def test_a_long_pass_is_followed_immediately_by_the_next():
    """
    There is no wait for an interval that is over.
    """
    clock = Clock()
    verify_repeatedly(lambda: Verdict.EQUAL, unexpected, 1.0, clock)

    assert clock.waits_s == [0.0, 0.0, 0.0]
