"""The findings of a check of a sink's routes and targets."""

from types import SimpleNamespace

import pytest

from towpath.settings import Settings, Sink
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.cli import sink as command
from towpath.sinks.errors import (
    ShapeUnknownError,
    SourceUnavailableError,
    StateNotWrittenError,
    TargetUnavailableError,
)
from towpath.sinks.kinds import Kind
from towpath.sinks.targets import checks
from towpath.sinks.targets.checks import Finding, check_sink, check_target

SHAPE = RelationShape("shop", "orders", (Column("id", "bigint"),), ("id",), "")


class Relations:
    """Announces one table."""

    def shape(self, topic):
        """Return its shape."""
        if not topic.endswith("orders"):
            raise ShapeUnknownError(topic)
        return SHAPE

    def refresh(self):
        """Do nothing."""


def sink(*routes) -> Sink:
    """Make a cache with the given routes."""
    named = [{"name": f"r{number}"} | route for number, route in enumerate(routes)]
    described = {"name": "cache", "kind": "cache", "url": "redis://x", "route": named}
    return Sink.model_validate(described)


def test_each_mistake_is_reported_on_its_own_line():
    """
    All mistakes are reported together, with their sink.
    """
    routes = [
        {"topic": "towpath.shop.orders", "exclude": ["ip"]},
        {"topic": "towpath.shop.orders", "exclude": ["id"]},
    ]

    assert [
        "cache: r0 (shop.orders): exclude: no column ip; did you mean 'id'?",
        "cache: r1 (shop.orders): the key column id is left out",
    ] == [one.text for one in check_sink(sink(*routes), Relations()) if one.is_mistake]


def test_an_unannounced_table_is_reported_but_is_not_a_mistake():
    """
    The relay announces it with its first record.
    """
    route = {"topic": "towpath.shop.lines", "exclude": ["ip"]}
    text = "cache: the table of towpath.shop.lines is not announced yet"

    assert [Finding(text, is_mistake=False)] == list(
        check_sink(sink(route), Relations())
    )


def test_an_unreachable_target_is_reported_with_its_remedy(monkeypatch):
    """
    The reader is closed in both cases; a reachable target has no finding.
    """
    closed = []

    class Reader:
        """Fails, or has no rows."""

        def __init__(self, *, fails):
            self._fails = fails

        def rows(self, _route):
            """Fail, or return no rows."""
            if self._fails:
                message = "no answer"
                raise TargetUnavailableError(message)
            return iter(())

        def close(self):
            """Record the call."""
            closed.append(self)

    findings = []
    kind = Kind(make=None, read=Reader)
    monkeypatch.setattr(checks, "kind_of", lambda _: kind)
    for fails in (True, False):
        reader = Reader(fails=fails)
        monkeypatch.setattr(checks, "reader_of", lambda *_, r=reader: r)
        findings += check_target(sink({"topic": "towpath.shop.orders"}), None)

    assert 2 == len(closed)
    assert [f"cache: no answer. {TargetUnavailableError.remedy}"] == [
        one.text for one in findings
    ]


def test_all_missing_permissions_are_reported_and_nothing_is_read(monkeypatch):
    """
    A reader would stop at the first missing permission.
    """
    restricted = Kind(make=None, read=None, rights=lambda *_: ("no INFO", "no SCAN"))
    monkeypatch.setattr(checks, "kind_of", lambda _: restricted)
    database = SimpleNamespace(database=SimpleNamespace(prefix="towpath"))
    found = check_target(sink({"topic": "towpath.shop.orders"}), database)

    assert [Finding("cache: no INFO"), Finding("cache: no SCAN")] == list(found)


def test_a_table_that_may_not_be_looked_up_is_not_reported_as_missing(monkeypatch):
    """
    A role without permission on the schema gets no answer; the other table is reported.
    """

    class Source:
        """Has none of the tables, and denies access to one schema."""

        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            """Do nothing."""

        def has_table(self, name):
            """Return False, or fail for the hidden schema."""
            if name.schema == "hidden":
                message = "permission denied for schema hidden"
                raise SourceUnavailableError(message)
            return False

    monkeypatch.setattr(command, "Source", Source)
    topics = ("towpath.hidden.orders", "towpath.shop.lines")
    declared = sink(*({"topic": topic} for topic in topics))
    tables = ("hidden.o.*", "shop.l.*")
    settings = Settings.model_validate(
        {
            "version": 1,
            "source": [{"dsn": "postgresql://x/y", "tables": tables}],
            "kafka": {"bootstrap_servers": "x"},
            "registry": {"url": "http://x"},
        }
    )
    nothing = SimpleNamespace(knows=lambda _: False)

    found = command.routes_without_table(settings, declared, nothing)
    text = (
        "cache: the source has no table shop.lines, although a regular expression in "
    )

    assert [f"{text}source.tables selects it"] == [one.text for one in found]


def test_a_sink_whose_state_cannot_be_written_does_not_run(tmp_path, monkeypatch):
    """
    The Java wrapper is the first file that is written to the state folder.
    """
    (tmp_path / "state").touch()
    config = tmp_path / "towpath.toml"
    config.write_text(
        'version = 1\nstate_folder = "state"\n'
        '[[source]]\ndsn = "host=x"\ntables = ["shop.orders"]\n'
        '[kafka]\nbootstrap_servers = "unused:1"\n'
        '[registry]\nurl = "http://unused"\n'
        '[[sink]]\nname = "s"\nkind = "cache"\nurl = "redis://x"\n'
        '[[sink.route]]\nname = "r"\ntopic = "towpath.shop.orders"\n'
    )
    monkeypatch.delenv("TOWPATH_SPARK_JARS", raising=False)
    monkeypatch.setattr(command.store, "of", lambda _: tmp_path)

    with pytest.raises(StateNotWrittenError, match="state/java: Not a directory"):
        command.run("s", config=config)


@pytest.mark.parametrize(
    ("names", "expected"), [(["a"], "1 sink: no"), (["a", "b"], "2 sinks: no")]
)
def test_the_checked_sinks_are_counted(names, expected, monkeypatch, capsys):
    """
    A check without mistakes reports how many sinks it has checked.
    """
    shapes = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(command, "configure_logs", lambda: None)
    monkeypatch.setattr(command, "read_settings", lambda _: None)
    monkeypatch.setattr(command, "sink_named", lambda _, name: name)
    monkeypatch.setattr(command, "TableShapes", lambda _: shapes)
    for name in ("check_topics", "check_sink", "routes_without_table", "check_target"):
        monkeypatch.setattr(command, name, lambda *_: [])
    monkeypatch.setattr(command, "check_kinds", lambda _: None)

    assert 0 == command.check(*names)
    assert f"{expected} mistakes\n" == capsys.readouterr().out
