"""The entries of ``[[source]] tables``, and the tables that they match."""

from pathlib import Path
from typing import Any

import pytest

from towpath.schemas.failure import ConfigurationError
from towpath.settings import Capture, Settings, read

WRITTEN: dict[str, Any] = {
    "version": 1,
    "source": [{"dsn": "postgresql:///x"}],
    "kafka": {"bootstrap_servers": "h:1"},
    "registry": {"url": "http://x"},
}


def settings_of(**sections: dict[str, Any]) -> Settings:
    """Read a file with these additional keys in its sections."""
    source = {**WRITTEN["source"][0], **sections.pop("source", {})}
    return read({**WRITTEN, "source": [source], **sections}, {}, Path("/"))


@pytest.mark.parametrize(
    ("entry", "table", "is_matched"),
    [
        ("s.a", "s.a", True),
        ("s.a", "sxa.b", False),
        ('"s".a', "s.a", True),
        ('s."a.b"', 's."a.b"', True),
        ('s."a.b"', '"s.a".b', False),
        (r"s\.a\.b", '"s.a".b', True),
        (r"s\.a\.b", 's."a.b"', True),
        ('"s"."a|b"', "s.a|b", True),
        ('"s"."a|b"', "s.a", False),
        ("s.a|b", "s.a", True),
        (".*", '"pg_x.y".a', False),
        ("s.a$b", "s.a$b", True),
        (r"s\.a", "s.a", True),
        (r"s\.a.*", "s.abc", True),
        (r"s\.a", "s.ab", False),
        (r"s\.(?<name>a|b)", "s.b", True),
        (r"s\.a\(?<b", "s.a<b", True),
        (r"s\.a\\(?<name>b)", r"s.a\b", True),
        ("s.[(?<a]", "s.<", True),
        ("s.[(?<a]", "s.P", False),
        (r"s.[](?<a\]]", "s.P", False),
        ("s.[^x](?<name>b)", "s.ab", True),
        ("^s.a$", "s.a", True),
        (r"(?i)s\.A", "S.a", True),
        (".*", "pg_catalog.pg_class", False),
        (".*", "information_schema.tables", False),
        (".*", "towpath.signal", False),
        (".*", "towpath_2.signal", True),
        (".*", "shop.outbox", False),
        (".*", "s.leftx", False),
        (".*", "s.exact", False),
    ],
)
def test_an_entry_matches_complete_names(entry: str, table: str, *, is_matched: bool):
    """
    A name matches itself; an expression matches whole names of capturable tables.
    """
    capture = Capture((entry,), (r".*\.left.*", "s.exact"), frozenset({"shop.outbox"}))

    assert is_matched == capture.includes(table)


def test_names_come_first_and_each_table_once():
    """
    Named tables keep their order even if they do not exist; others follow by name.
    """
    capture = Capture(("s.z", r"s\..*", "t.none"))

    assert ("s.z", "t.none", "s.a", "s.b") == capture.chosen(
        ["s.b", "s.z", "s.a", "u.c", "s.a"]
    )


def test_regular_expressions_exclude_the_outbox_and_the_signal_table():
    """
    A regular expression never matches a table with a special purpose.
    """
    settings = settings_of(
        source={"tables": [".*"]},
        relay={
            "outbox": {"table": "shop.events"},
            "snapshot": {"signal_table": "shop.asks"},
        },
    )
    matched = [
        settings.capture.includes(f"shop.{name}") for name in ("events", "asks", "a")
    ]

    assert [False, False, True] == matched


@pytest.mark.parametrize(
    ("sections", "mistake"),
    [
        (
            {"source": {"tables": ["s.(a"]}},
            "source.0.tables.0: not a regular expression: missing )",
        ),
        ({"source": {"tables": ["orders"]}}, "source.0.tables.0: must be schema.table"),
        (
            {"source": {"tables": ["s.a"], "exclude_tables": [r"s\..*"]}},
            r"source.exclude_tables: s\..* matches s.a, which source.tables names",
        ),
        (
            {
                "source": {"tables": [r"s\..*"]},
                "relay": {"rows": {"key_columns": {"t.a": ["id"]}}},
            },
            "relay.rows.key_columns.t.a: not one of source.tables",
        ),
        (
            {
                "source": {"tables": ["s.a"]},
                "relay": {
                    "snapshot": {"select": [{"table": "s.b", "select": "select 1"}]}
                },
            },
            "relay.snapshot.select: s.b: not one of source.tables",
        ),
        (
            {
                "source": {"tables": ["s.a"]},
                "relay": {
                    "snapshot": {"select": [{"table": "s.a", "select": "select 1"}] * 2}
                },
            },
            "relay.snapshot.select: s.a is given more than once",
        ),
        (
            {"source": {"tables": ["s.a", "s.b", "s.a"]}},
            "source.tables: s.a is named more than once",
        ),
        (
            {"source": {"publication": "p", "outbox_publication": "p"}},
            "source.outbox_publication: must differ from source.publication",
        ),
        (
            {"relay": {"on_gap": "halt", "snapshot": {"mode": "when_needed"}}},
            'relay.on_gap: "halt" stops where relay.snapshot.mode = "when_needed"',
        ),
    ],
)
def test_contradicting_table_entries_are_reported(
    sections: dict[str, Any], mistake: str
):
    """
    An impossible entry, or a contradiction between two keys, gives one sentence.
    """
    with pytest.raises(ConfigurationError) as refused:
        settings_of(**sections)

    assert [mistake] == [each[: len(mistake)] for each in refused.value.mistakes]
