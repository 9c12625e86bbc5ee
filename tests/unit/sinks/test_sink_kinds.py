"""Kinds of sinks are found in packages, and a broken kind is reported."""

import sys
from pathlib import Path

import pytest

from towpath.schemas.failure import ConfigurationError, UsageError
from towpath.settings import Route, RouteKind, Sink, SinkKind
from towpath.sinks.errors import KindBrokenError
from towpath.sinks.kinds import (
    Kind,
    check_kinds,
    engine_memory,
    engine_settings,
    kind_of,
)

MODULE = """
from towpath.settings import RouteKind
from towpath.sinks.kinds import Kind

def engine(sink):
    return {"spark.heap": sink.url}

def mistakes(sink):
    return ["height: must be a number"] if "height" not in sink.options else []

KIND = Kind(make=None, mistakes=mistakes, engine=engine, memory="1536m")
NONE = object()
"""


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch) -> None:
    """Install a package with three kinds: one works, and two do not."""
    about = tmp_path / "heap-1.0.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text("Name: heap\nVersion: 1.0\n")
    about.joinpath("entry_points.txt").write_text(
        "[towpath.sinks]\nheap = heap_of_rows:KIND\n"
        "none = heap_of_rows:NONE\ngone = heap_of_sand:KIND\n"
    )
    tmp_path.joinpath("heap_of_rows.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "heap_of_rows", raising=False)


def sink(kind: str, name: str = "one", url: str = "x", **more) -> Sink:
    """Describe a sink."""
    route = more.pop("route", Route(topic="t", name="orders"))
    return Sink(name=name, kind=kind, url=url, route=(route,), **more)


@pytest.mark.parametrize("kind", ["cache", "search"])
def test_a_built_in_kind_is_found_like_any_other(kind: str):
    """
    All kinds are found in the same way, without importing a target's client library.
    """
    assert isinstance(kind_of(sink(kind)), Kind)


def test_every_built_in_kind_has_its_entry_point(tmp_path: Path):
    """
    Every kind that the configuration knows has a factory.
    """
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - an example
    needs = {
        SinkKind.WAREHOUSE: {"folder": tmp_path},
        SinkKind.WEBHOOK: {"webhook": {"secrets": [secret]}, "url": "http://x"},
    }
    for kind in SinkKind:
        assert isinstance(kind_of(sink(kind, **needs.get(kind, {}))), Kind)


def test_a_kind_of_another_package_is_found_by_its_entry_point():
    """
    The package's own object is the kind.
    """
    assert kind_of(sink("heap")).memory == "1536m"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("none", "is not a towpath.sinks.kinds.Kind"), ("gone", "cannot be imported")],
)
def test_a_package_without_its_kind_is_named_in_the_error(kind: str, expected: str):
    """
    The message names the kind and where it should be.
    """
    with pytest.raises(KindBrokenError, match=f"{kind} .heap_of_.*{expected}"):
        kind_of(sink(kind))


def test_a_kind_without_a_package_is_named_in_the_error():
    """
    An executor may lack a package that the driver has.
    """
    with pytest.raises(KindBrokenError, match="package provides the kind absent"):
        kind_of(sink("heap").model_copy(update={"kind": "absent"}))


def test_mistakes_in_a_kinds_options_are_reported_together():
    """
    A mistake that only the kind can check is reported like any other.
    """
    log = Route(topic="e", name="log", kind=RouteKind.EVENT_LOG)
    with pytest.raises(ConfigurationError) as caught:
        check_kinds([sink("heap", route=log), sink("heap", "two", options={"a": 1})])

    assert caught.value.mistakes == (
        (
            "sink.one.route.log.kind: the kind heap does not write a route of the "
            "kind event_log"
        ),
        "sink.one.options.height: must be a number",
        "sink.two.options.height: must be a number",
    )


def test_a_kind_without_executor_support_refuses_executors():
    """
    The kind itself decides this, as it decides which routes it writes.
    """
    given = sink("heap", write_from="executors", options={"height": 1})
    reason = r"one\.write_from: only the driver can write to a heap sink"
    with pytest.raises(ConfigurationError, match=reason):
        check_kinds([given])


def test_a_driver_has_the_settings_that_its_sinks_need():
    """
    Settings are merged, and the largest heap applies.
    """
    sinks = [sink("cache"), sink("heap", "two")]

    assert ({"spark.heap": "x"}, "1536m") == (
        engine_settings(sinks),
        engine_memory(sinks),
    )


def test_sinks_with_conflicting_engine_settings_need_different_drivers():
    """
    One driver has one engine: the error names the sinks in conflict.
    """
    with pytest.raises(UsageError, match="one and two need different engines"):
        engine_settings([sink("heap"), sink("heap", "two", url="y")])
