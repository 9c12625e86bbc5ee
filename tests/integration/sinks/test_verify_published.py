"""
The verifier compares the columns that a real relay publishes, by the published key.
"""

import pytest

from support.verified_sink import CacheEditor, VerifiedRig

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

TABLES = {
    "hidden": (
        "id int primary key, v int, secret text, private text, tags text[],"
        " twice int generated always as (v * 2) stored,"
        " thrice int generated always as (v * 3) virtual"
    ),
    "keyless": "code text not null unique, v int",
    "chosen": "id int primary key, code text not null unique, v int",
    "vague": "id int primary key, code text not null, v int",
}
ROWS = """
    insert into s.hidden values (1, 1, 'secret', 'private', '{a,"b c"}'),
        (2, 2, null, null, null);
    insert into s.keyless values ('a:1', 1), ('b', 2);
    insert into s.chosen values (1, 'a:1', 1), (2, 'b', 2);
    insert into s.vague values (1, 'a', 1), (2, 'a', 2)
"""
RULES = """
[relay.rows]
exclude_columns = ['s\\.hidden\\.private']
[relay.rows.key_columns]
"s.chosen" = ["code"]
"s.vague" = ["code"]
[[relay.rows.mask]]
columns = ['s\\.hidden\\.secret']
form = "mask"
length = 5
"""


class Rig(VerifiedRig):
    """Tables that are published with keys other than their primary keys."""

    def init(self):
        self.execute(
            "alter table s.keyless replica identity using index keyless_code_key"
        )
        for name in ("chosen", "vague"):
            self.execute(f"alter table s.{name} replica identity full")
        super().init()

    def editor(self, table):
        """Return an editor of a table's rows in the cache."""
        return CacheEditor(self.url, self.prefix, table)


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide a cache that follows a relay with rules for columns and keys."""
    stack.up("postgres", "kafka")
    made = Rig(database, stack.kafka, unique, tmp_path)
    made.prepare(f'kind = "cache"\nurl = "{stack.redis_url}"\n', TABLES)
    for statement in ROWS.split(";"):
        made.execute(statement)
    made.config.write_text(made.config.read_text() + RULES)
    made.url = stack.redis_url
    try:
        with made.followed():
            yield made
    finally:
        made.close()


def routes_of(report):
    """Return the differences, the notes and the error of each route."""
    return {
        route["route"]: (
            [(d["kind"], d["key"]) for d in route["first"]],
            route["notes"],
            route["error"],
        )
        for route in report["routes"]
    }


def test_only_published_columns_are_compared(rig, capsys):
    """
    Masked columns are reported; all others are compared, by the rows' published keys.

    A key that is not unique is reported as an error, and the other routes are compared.
    """
    before = routes_of(rig.verify(capsys)[1])
    rig.editor("hidden").alter(1, 7)
    rig.editor("hidden").alter(2, 7, column="twice")
    for table in ("keyless", "chosen"):
        rig.editor(table).alter("b", 7)
        rig.editor(table).lose("a%3A1")
    code, report = rig.verify(capsys)
    after = routes_of(report)
    vague = before.pop("vague")
    masked = "masked columns are not compared: secret"

    assert {name: [] for name in before} == {
        name: each[0] for name, each in before.items()
    }
    assert [masked] == before["hidden"][1]
    assert "published with the key code" in vague[2]
    assert [("changed", "1"), ("changed", "2")] == after["hidden"][0]
    assert (1, {(("missing", "a%3A1"), ("changed", "b"))}) == (
        code,
        {tuple(after[t][0]) for t in ("keyless", "chosen")},
    )


def test_rows_are_repaired_by_their_published_key(rig, capsys):
    """The rows are requested by the key of a unique index, and are then equal."""
    rig.editor("keyless").alter("b", 7)
    rig.editor("keyless").lose("a%3A1")
    options = ("--table", "keyless")
    repaired = rig.verify(capsys, "--repair", *options)[1]["routes"]
    code, _ = rig.verify(capsys, *options)

    assert (0, [2]) == (code, [route["repaired"] for route in repaired])
