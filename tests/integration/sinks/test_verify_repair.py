"""
Every kind of defect is planted in every sink, and the verifier repairs it.

The source, the broker, the relay, the targets and the command are real; a thread
applies the records to the sink while sessions keep writing.
"""

import uuid
from operator import itemgetter

import pytest

from support.databases import fresh_database
from support.verified_sink import (
    ABOVE_ALL,
    OLD,
    CacheEditor,
    SearchEditor,
    VerifiedRig,
    WarehouseEditor,
)
from support.writers import RandomWriters
from towpath.cli.app import run
from towpath.sinks.verify.repair import ABOVE, NO_KEY, TWICE

CACHE = pytest.param("cache", marks=pytest.mark.timeout(90))
SEARCH = pytest.param("search", marks=pytest.mark.timeout(120))
WAREHOUSE = pytest.param(
    "warehouse", marks=[pytest.mark.spark, pytest.mark.timeout(240)]
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

ROWS = 200
# One table for each test.
TABLES = ("defects", "again", "above", "strange")
REFILLED = """
    select count(*) from towpath.signal
    where starts_with(id, 'towpath-new-') and status = 'completed'
"""
# A warehouse takes about a second for a commit.
PAUSES_S = {"cache": 0.005, "search": 0.02, "warehouse": 1.0}


class Writers(RandomWriters):
    """Sessions that write half of the keys, delete some and insert them again."""

    def change(self, connection, rng):
        is_hot = rng.random() < 0.3
        key = 1 + rng.randrange(3 if is_hot else self.highest)
        if rng.random() < 0.3:
            connection.execute("delete from s.defects where id = %s", [key])
            return
        connection.execute(
            "insert into s.defects values (%s, %s)"
            " on conflict (id) do update set v = excluded.v",
            [key, rng.randrange(10**6)],
        )


class Shared(VerifiedRig):
    """A sink of one kind that follows a relay; each test has its own table."""

    def prepare_kind(self, kind, url, lake):
        """Create and fill the tables, and write the configuration."""
        self.pause_s = PAUSES_S[kind]
        prefixes = {"search": f"{self.prefix}-", "warehouse": f"{self.prefix}."}
        self.row_prefix = prefixes.get(kind, "")
        lines = f'kind = "{kind}"\nurl = "{url}"\n'
        if kind == "warehouse":
            lines += f'folder = "{lake[0].folder}"\n'
        tables = dict.fromkeys(TABLES, "id int primary key, v int")
        self.prepare(lines, tables, self.row_prefix)
        for name in tables:
            self.execute(
                f"insert into s.{name} select g, g from generate_series(1, %s) g",  # noqa: S608 - the test's own
                ROWS,
            )
        self.make_editor = {
            "cache": lambda table: CacheEditor(url, self.prefix, table),
            "search": lambda table: SearchEditor(url, self.row_prefix + table),
            "warehouse": lambda table: WarehouseEditor(
                lake[1], self.row_prefix + table
            ),
        }[kind]

    def use(self, table):
        """Choose the table that is altered and verified."""
        self.table, self.editor = table, self.make_editor(table)

    def captured(self):
        """Return how many tables the relay captures."""
        return self.one("select count(*) from towpath.captured")

    def settle(self):
        """Wait until the sink has everything that has been committed."""
        self.catch_up()
        self.wait_for(lambda: not self.is_behind())


@pytest.fixture(scope="module")
def shared(request, stack, tmp_path_factory):
    """Provide a filled sink of one kind, for all tests of that kind."""
    kind = request.param
    unique = f"t_{uuid.uuid4().hex[:12]}"
    stack.up("postgres", "kafka")
    lake = request.getfixturevalue("lake") if kind == "warehouse" else None
    url = {
        "cache": lambda: stack.redis_url,
        "search": lambda: stack.opensearch_url,
        "warehouse": lambda: lake[0].url,
    }[kind]()
    with fresh_database(stack, unique) as dsn:
        made = Shared(dsn, stack.kafka, unique, tmp_path_factory.mktemp(kind))
        made.prepare_kind(kind, url, lake)
        try:
            with made.followed(lake[1] if lake else None):
                made.settle()
                yield made
        finally:
            made.close()


@pytest.fixture
def rig(shared):
    """Provide the shared sink; its relay is restarted after a failed test."""
    yield shared
    if not shared.processes:
        shared.start()


@pytest.fixture
def verify(rig, capsys):
    """
    Provide a function that verifies a table.

    It returns the exit code, the differences and the route's report.
    """

    def run(*options):
        code, document = rig.verify(capsys, "--table", f"s.{rig.table}", *options)
        (route,) = document["routes"]
        assert route["error"] is None, route
        return code, sorted((d["kind"], d["key"]) for d in route["first"]), route

    return run


def plant(rig):
    """Plant one defect of each kind at keys that no session writes; return them."""
    rig.execute("update s.defects set v = v + 1 where id = 195")
    rig.execute("delete from s.defects where id = 196")
    rig.settle()
    editor = rig.editor
    editor.alter(191, -1)
    editor.lose(192)
    editor.put(500, 1, OLD)
    editor.put(195, 195, OLD)
    editor.revive(196)
    planted = [
        ("changed", "191"),
        ("changed", "195"),
        ("extra", "196"),
        ("extra", "500"),
        ("missing", "192"),
    ]
    if isinstance(editor, CacheEditor | SearchEditor):
        editor.add_field(193)
        planted.append(("surplus", "193"))
    return planted


on_each = pytest.mark.parametrize("shared", [CACHE, SEARCH, WAREHOUSE], indirect=True)


def only_in_soak(kind):
    """Return the parameter for a kind of sink, marked for soak runs only."""
    return pytest.param(*kind.values, marks=[*kind.marks, pytest.mark.soak])


@on_each
def test_each_defect_is_found_and_repaired_under_load(rig, verify):
    """
    A changed, a lost, an invented, a stale and a revived row are repaired.

    Where a row can have a field that belongs to no column, the field counts as a
    difference too (B7). A sample larger than both sides includes all rows of both. The
    command exits with 1, lists exactly these keys, repairs them, and finds nothing
    afterwards.
    """
    rig.use("defects")
    planted = plant(rig)
    sampled = verify("--sample", "1000")
    with Writers(rig.dsn, ROWS // 2, pause_s=rig.pause_s):
        found = verify()
        repaired = verify("--repair")
        after = verify()
    columns = [d["column"] for d in found[2]["first"] if d["kind"] == "surplus"]
    surplus = [key for kind, key in planted if kind == "surplus"]

    assert (1, planted) == sampled[:2]
    assert (ROWS - 1, ROWS) == (sampled[2]["source_rows"], sampled[2]["sink_rows"])
    assert (1, planted) == found[:2]
    assert ["stray"] * len(surplus) == columns
    assert (0, len(planted), []) == (
        repaired[0],
        repaired[2]["repaired"],
        repaired[2]["left"],
    )
    assert (0, []) == after[:2]


@pytest.mark.parametrize(
    "shared", [CACHE, *map(only_in_soak, (SEARCH, WAREHOUSE))], indirect=True
)
def test_a_recreated_table_leaves_no_old_row(rig, verify):
    """
    The relay is down while the table is dropped and recreated with different rows.

    After another drop, with on_drop = "truncate", no row of the table remains.
    """
    rig.use("again")
    rig.wait_for(lambda: rig.captured() == len(TABLES))
    rig.stop()
    rig.execute("drop table s.again")
    rig.execute("create table s.again (id int primary key, v int)")
    rig.execute("insert into s.again select g, -g from generate_series(150, 250) g")
    rig.start()
    rig.wait_for(lambda: rig.one(REFILLED) == 1)
    code, found, route = verify()
    rig.stop()
    rig.execute("drop table s.again")
    rig.config.write_text(
        rig.config.read_text().replace("[kafka]", 'on_drop = "truncate"\n[kafka]', 1)
    )
    rig.start()
    rig.wait_for(lambda: rig.captured() == len(TABLES) - 1)
    rig.execute("create table s.again (id int primary key, v int)")
    rig.wait_for(lambda: rig.one(REFILLED) == 2)
    after = verify()

    assert (0, [], 101) == (code, found, route["sink_rows"])
    assert (0, [], 0) == (after[0], after[1], after[2]["sink_rows"])


@pytest.mark.parametrize(
    "shared", [CACHE, only_in_soak(SEARCH), WAREHOUSE], indirect=True
)
def test_rows_that_nothing_replaces_are_erased_and_read_again(rig, verify):
    """
    B7: rows with positions above all others, in the source or not, and a repeated row.

    A repair requests all other rows again, and reports why these rows are left. Rows
    are erased only on request, and only at these keys; later changes to the keys are
    applied. A refill restores none of the planted rows.
    """
    rig.use("above")
    planted = {"7": "changed", "500": "extra"}
    left = [{"reason": ABOVE, "keys": 2}]
    for key in planted:
        rig.editor.put(key, -1, ABOVE_ALL)
    if isinstance(rig.editor, WarehouseEditor):
        planted["9"] = "twice"
        left.append({"reason": TWICE, "keys": 1})
        rig.editor.copy(9)
        rig.editor.alter(9, -1)
    rig.editor.lose(8)
    with rig.processing_requests():
        assert 2 == run(["verify", "it", "--erase", "--config", str(rig.config)])
        repaired = verify("--repair")
        erased = verify("--repair", "--erase")
        keys = [*map(int, planted)]
        rig.execute("update s.above set v = v + 1 where id = any(%s)", keys)
        rig.execute("insert into s.above values (500, 5)")
        after = verify()
        rig.execute("delete from s.above where id = 500")
        rig.signal("refill", data_collections=["s.above"], sweep=True, target="it")
        rig.wait_for_answer("refill")
        refilled = verify()

    assert (1, sorted((kind, key) for key, kind in planted.items())) == repaired[:2]
    assert 1 == repaired[2]["repaired"]
    assert sorted(left, key=itemgetter("reason")) == repaired[2]["left"]
    assert (0, len(planted), []) == (
        erased[0],
        erased[2]["repaired"],
        erased[2]["left"],
    )
    assert (0, []) == after[:2]
    assert (0, []) == refilled[:2]


@pytest.mark.parametrize("shared", [CACHE], indirect=True)
def test_a_foreign_row_does_not_prevent_repairs(rig, verify):
    """
    A key that the table cannot have is reported; rows of other keys are requested.

    So are keys at which another program has stored a value that is not a row.
    """
    rig.use("strange")
    for key in ("not a number", "1:2", "007", "99999999999"):
        rig.editor.put(key, 1, OLD)
    rig.editor.lose(8)
    for key in (9, 501):
        rig.editor.put_text(key)
    code, found, route = verify("--repair")

    assert (1, 4, 3) == (code, len(found), route["repaired"])
    assert [{"reason": NO_KEY, "keys": 4}] == route["left"]


KEYS = {
    "bytes": ("bytea", r"""'\x00ff', '\x', '\x5c78', decode('AAH/', 'base64')"""),
    "amounts": ("numeric", "1.0, -0.00, 12345678901234567890.125, 'NaN'"),
    "moments": (
        "timestamptz",
        "'2026-03-29 03:30:00.5+02', '0044-03-15 BC', 'infinity', now()",
    ),
    "local_times": (
        "timestamp",
        "'1066-10-14 09:00', '10001-01-01', '0044-03-15 BC', now()",
    ),
    "days": ("date", "'2026-02-28', '0001-01-01 BC', '-infinity', now()"),
    "ids": (
        "uuid",
        "gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid()",
    ),
    "codes": ("character(4)", "'a', '', 'abcd', 'a:%b'"),
    "texts": ("text", r"""'', 'a:b%', '\x41', 'ä'"""),
    "spans": ("interval", "'1 day', '2 mons', '3 h', '-1 day'"),
}
COLUMNS = {
    name: f"id {type_} primary key, v int" for name, (type_, _) in KEYS.items()
} | {"pairs": "b bytea, id numeric, c text, v int, primary key (c, b, id)"}


@pytest.fixture
def typed(stack, database, unique, tmp_path):
    """Provide a cache of tables whose keys have all kinds of types."""
    stack.up("postgres", "kafka")
    made = VerifiedRig(database, stack.kafka, unique, tmp_path)
    made.prepare(f'kind = "cache"\nurl = "{stack.redis_url}"\n', COLUMNS)
    for name, (type_, values) in KEYS.items():
        made.execute(
            f"insert into s.{name} select id::{type_}, 1"  # noqa: S608 - the test's own
            f" from unnest(array[{values}]::{type_}[]) id"
        )
    made.execute(
        r"insert into s.pairs select '\x00ff', n, 'a:b', 1"
        " from unnest('{1.0,2,3,4}'::numeric[]) n"
    )
    made.editors = {
        name: CacheEditor(stack.redis_url, unique, name) for name in COLUMNS
    }
    try:
        with made.followed():
            yield made
    finally:
        made.close()


def test_keys_of_every_type_are_repaired(typed, capsys):
    """
    A changed, a lost and a revived row are requested again, whatever the key's type.
    """
    for name in COLUMNS:
        typed.execute(
            f"delete from s.{name} where ctid ="  # noqa: S608 - the test's own
            f" (select max(ctid) from s.{name})"
        )
    typed.catch_up()
    typed.wait_for(lambda: not typed.is_behind())
    kinds = {"changed", "missing", "extra"}
    for editor in typed.editors.values():
        gone = [key for key in editor.names() if editor.is_deleted(key)]
        first, second, _ = (key for key in editor.names() if key not in gone)
        editor.alter(first, -1)
        editor.lose(second)
        editor.revive(*gone)
    before, found = typed.verify(capsys)
    after, repaired = typed.verify(capsys, "--repair")

    missed = [r for r in found["routes"] if {d["kind"] for d in r["first"]} != kinds]
    left = [r for r in repaired["routes"] if (r["repaired"], r["left"]) != (3, [])]

    assert (1, [], len(COLUMNS)) == (before, missed, len(found["routes"]))
    assert (0, []) == (after, left)
