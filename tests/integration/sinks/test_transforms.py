"""
Transforms of a real relay's rows: each sink has the rows that the verifier expects.
"""

import pytest

from support.driver_process import live_fields
from support.follower import WritingFollower
from support.verified_sink import CacheEditor, VerifiedRig
from towpath.settings import load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

WAREHOUSE = pytest.param(
    "warehouse", marks=[pytest.mark.spark, pytest.mark.timeout(240)]
)

LARGE = 9_000
COLUMNS = (
    "id int primary key, name text, email text, card text, note text, state text,"
    " total numeric, paid boolean, ratio double precision, share real,"
    " at timestamptz, tags text[], code uuid"
)
TRANSFORMS = """
exclude = ["name", "note"]
rename = { label = "title" }
constants = { region = "eu" }
[[sink.route.transforms]]
template = "{id}: {name} {note} {paid} {ratio} {share} {total} {at} {code}"
to = "label"
[[sink.route.transforms]]
hash = "email"
salt = "people"
[[sink.route.transforms]]
mask = "card"
keep_last = 4
[[sink.route.transforms]]
cast = "total"
type = "numeric(12, 2)"
[[sink.route.transforms]]
cast = "at"
type = "date"
to = "day"
[[sink.route.transforms]]
drop_if = { state = ["draft", "gone"], total = { below = 100 } }
"""
ROWS = """
    insert into s.people values
        (1, 'Ada', 'ada@example.com', '4929123123123126', 'x', 'live', 1.005, true,
         1e20, 0.1, '2026-03-29 03:30:00.5+02', '{a,NULL}',
         '6f2c1f9e-0000-4000-8000-00000000000a'),
        (2, 'Bob', null, null, null, 'draft', 2, false, 1, 'NaN', null, null, null),
        (3, 'Cy', '', '', repeat('x', 9000), 'live', 100, false, 0.1, 1, 'epoch', '{}',
         '6f2c1f9e-0000-4000-8000-00000000000b'),
        (4, 'Di', 'di', '12345', repeat('y', 9000), 'live', 4, true, 'Infinity', 1e-7,
         'epoch', null, null),
        (5, 'Ed', 'ed', '1', repeat('z', 9000), 'draft', 200, true, 5, 5, 'epoch',
         null, null)
"""
# Some updates leave a row's large column unchanged; rows enter and leave the sinks.
CHANGES = (
    "update s.people set name = 'Ada L.' where id = 1",
    "update s.people set state = 'live' where id = 2",
    "update s.people set name = 'Cyd' where id = 3",
    "update s.people set state = 'gone' where id = 4",
    "update s.people set total = 50 where id = 5",
    "update s.people set total = 300 where id = 5",
    "insert into s.people (id, name, state, total) values (6, 'F', 'gone', 1)",
    "insert into s.people (id, name, state, total) values (7, 'G', 'live', 1)",
    "delete from s.people where id = 7",
)


class Rig(VerifiedRig):
    """A table of people, and a sink that is fed by a driver's record writer."""

    follows = WritingFollower

    def stored(self):
        """Return the live rows of the sink, by key."""
        settings = load(self.config, {})
        (sink,) = settings.sink
        return live_fields(settings, sink.name)

    def settle(self):
        """
        Wait until everything committed is applied, and every requested row has arrived.
        """

        def is_settled():
            return not (self.is_behind() or len(self.follower.refetches))

        self.catch_up()
        self.wait_for(is_settled)


@pytest.fixture
def rig(request, stack, database, unique, tmp_path):
    """Provide a sink of the given kind, with transforms, that follows a relay."""
    stack.up("postgres", "kafka")
    made = Rig(database, stack.kafka, unique, tmp_path)
    kind = request.param
    urls = {
        "cache": lambda: stack.redis_url,
        "search": lambda: stack.opensearch_url,
        "postgres": lambda: database,
        "warehouse": lambda: stack.dsn("warehouse"),
    }
    prefixes = {"postgres": "models.", "warehouse": f"{unique}."}
    made.url = urls[kind]()
    session = None
    files = ""
    if kind == "warehouse":
        sink_settings, session = request.getfixturevalue("lake")
        files = f'folder = "{sink_settings.folder}"\n'
    made.prepare(
        f'kind = "{kind}"\nurl = "{made.url}"\n{files}'
        'hash_salts = { people = "0123456789abcdef" }\n',
        {"people": COLUMNS},
        prefixes.get(kind, f"{unique}-"),
        TRANSFORMS,
    )
    made.execute("alter table s.people alter note set storage external")
    made.execute(ROWS)
    try:
        with made.followed(session):
            yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    "rig", ["cache", "search", "postgres", WAREHOUSE], indirect=True
)
def test_every_sink_has_the_rows_that_the_verifier_expects(rig, capsys):
    """
    Rows come from a snapshot and from the stream, whole or partial, kept or dropped.
    """
    filled = set(rig.stored())
    for statement in CHANGES:
        rig.execute(statement)
    rig.settle()
    stored = rig.stored()
    code, report = rig.verify(capsys)
    (first,) = report["routes"]
    one = {name: value for name, value in stored["1"].items() if value is not None}

    assert ({"1", "3", "4", "5"}, {"1", "2", "3", "5"}) == (filled, set(stored))
    assert [] == rig.follower.letters.reasons()
    assert (0, [], None) == (code, first["first"], first["error"])
    assert {"region": "eu", "card": "****3126", "day": "2026-03-29"}.items() <= (
        one.items()
    )
    assert "1: Ada L. x true 1e+20 0.1 1.005 2026-03-29T01:30" in one["title"]
    assert {"name", "note", "label"}.isdisjoint(one)
    assert f"3: Cyd {'x' * LARGE}" in stored["3"]["title"]


@pytest.mark.parametrize("rig", ["cache"], indirect=True)
def test_a_wrong_value_and_a_row_that_should_be_dropped_are_found(rig, capsys):
    """
    A refetch repairs both.
    """
    editor = CacheEditor(rig.url, rig.prefix, f"{rig.prefix}-people")
    editor.alter(1, 7, column="email")
    editor.put(2, 7, "0000000000000008.0000000000")
    found = rig.verify(capsys)
    repaired = rig.verify(capsys, "--repair")
    rig.settle()

    assert 1 == found[0]
    assert [("changed", "1", "email"), ("extra", "2", None)] == sorted(
        (each["kind"], each["key"], each["column"])
        for each in found[1]["routes"][0]["first"]
    )
    assert 0 == repaired[0]
