"""
The verifier against every kind of defect in every sink, planted and repaired.

Source, broker, relay and targets are real, and so is the command; a thread carries the
records into the sink, while sessions go on writing.
"""

from operator import itemgetter

import pytest

from support.verified_sink import (
    ABOVE_ALL,
    OLD,
    CacheHand,
    SearchHand,
    VerifiedRig,
    WarehouseHand,
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
REFILLED = """
    select count(*) from towpath.signal
    where starts_with(id, 'towpath-new-') and status = 'completed'
"""
# A warehouse commits a batch in a second or so.
PAUSES_S = {"cache": 0.005, "search": 0.02, "warehouse": 0.2}


class Writers(RandomWriters):
    """Sessions that write half of the keys, delete some and insert them again."""

    def change(self, connection, chance):
        is_hot = chance.random() < 0.3
        key = 1 + chance.randrange(3 if is_hot else self.highest)
        if chance.random() < 0.3:
            connection.execute("delete from s.a where id = %s", [key])
            return
        connection.execute(
            "insert into s.a values (%s, %s)"
            " on conflict (id) do update set v = excluded.v",
            [key, chance.randrange(10**6)],
        )


@pytest.fixture
def rig(request, stack, database, unique, tmp_path):
    """Provide a sink of one kind that follows a relay, and the hand that alters it."""
    kind = request.param
    stack.up("postgres", "kafka")
    made = VerifiedRig(database, stack.kafka, unique, tmp_path)
    lake = request.getfixturevalue("lake") if kind == "warehouse" else None
    beginning = {"cache": "", "search": f"{unique}-", "warehouse": f"{unique}."}[kind]
    url = {
        "cache": lambda: stack.redis_url,
        "search": lambda: stack.opensearch_url,
        "warehouse": lambda: lake[0].url,
    }[kind]()
    lines = f'kind = "{kind}"\nurl = "{url}"\n'
    if lake:
        lines += f'folder = "{lake[0].folder}"\n'
    made.prepare(lines, {"a": "id int primary key, v int"}, beginning)
    made.execute("insert into s.a select g, g from generate_series(1, %s) g", ROWS)
    made.hand = {
        "cache": lambda: CacheHand(url, unique, "a"),
        "search": lambda: SearchHand(url, f"{beginning}a"),
        "warehouse": lambda: WarehouseHand(lake[1], f"{beginning}a"),
    }[kind]()
    made.pause_s = PAUSES_S[kind]
    try:
        with made.followed(lake[1] if lake else None):
            made.catch_up()
            made.wait_for(lambda: not made.is_behind())
            yield made
    finally:
        made.close()


@pytest.fixture
def verify(rig, capsys):
    """Verify; return the exit code, the differences and the route's report."""

    def run(*words):
        code, document = rig.verify(capsys, *words)
        (route,) = document["routes"]
        assert route["error"] is None, route
        return code, sorted((d["kind"], d["key"]) for d in route["first"]), route

    return run


def plant(rig):
    """Plant one defect of each kind among the keys that nobody writes."""
    rig.execute("update s.a set v = v + 1 where id = 195")
    rig.execute("delete from s.a where id = 196")
    rig.catch_up()
    rig.wait_for(lambda: not rig.is_behind())
    hand = rig.hand
    hand.alter(191, -1)
    hand.lose(192)
    hand.put(500, 1, OLD)
    hand.put(195, 195, OLD)
    hand.revive(196)
    return [
        ("changed", "191"),
        ("changed", "195"),
        ("extra", "196"),
        ("extra", "500"),
        ("missing", "192"),
    ]


on_each = pytest.mark.parametrize("rig", [CACHE, SEARCH, WAREHOUSE], indirect=True)


@on_each
def test_each_defect_is_found_and_repaired_while_others_write(rig, verify):
    """
    A changed value, a lost and an invented row, a stale one and one that came back.

    The command exits by 1 with just these keys, repairs them, and finds nothing more.
    """
    planted = plant(rig)
    with Writers(rig.dsn, ROWS // 2, pause_s=rig.pause_s):
        found = verify()
        repaired = verify("--repair")
        after = verify()

    assert (1, planted) == found[:2]
    assert (0, 5, []) == (repaired[0], repaired[2]["repaired"], repaired[2]["left"])
    assert (0, []) == after[:2]


@on_each
def test_a_table_made_again_leaves_no_old_row(rig, verify):
    """
    The relay is down while the table is dropped and made again with other rows.

    Dropped once more, under on_drop = "truncate", the table leaves no row at all.
    """
    rig.wait_for(
        lambda: rig.one("select count(*) from towpath.captured") == len(rig.tables)
    )
    rig.stop()
    rig.execute("drop table s.a")
    rig.execute("create table s.a (id int primary key, v int)")
    rig.execute("insert into s.a select g, -g from generate_series(150, 250) g")
    rig.start()
    rig.wait_for(lambda: rig.one(REFILLED) == 1)
    code, found, route = verify()
    rig.stop()
    rig.execute("drop table s.a")
    rig.config.write_text(
        rig.config.read_text().replace("[kafka]", 'on_drop = "truncate"\n[kafka]', 1)
    )
    rig.start()
    rig.wait_for(lambda: rig.one("select count(*) from towpath.captured") == 0)
    rig.execute("create table s.a (id int primary key, v int)")
    rig.wait_for(lambda: rig.one(REFILLED) == 2)
    after = verify()

    assert (0, [], 101) == (code, found, route["sink_rows"])
    assert (0, [], 0) == (after[0], after[1], after[2]["sink_rows"])


@on_each
def test_a_sample_finds_rows_that_only_the_sink_has(rig, verify):
    """A sample as large as both sides meets the rows of both."""
    planted = plant(rig)
    code, found, route = verify("--sample", "1000")

    assert (1, planted) == (code, found)
    assert (ROWS - 1, ROWS) == (route["source_rows"], route["sink_rows"])


@on_each
def test_what_no_row_of_the_source_replaces_is_told(rig, verify):
    """A row above all positions stays, and the report says what replaces it."""
    rig.hand.put(7, -1, ABOVE_ALL)
    rig.hand.lose(8)
    code, found, route = verify("--repair")

    assert (1, [("changed", "7")], 1) == (code, found, route["repaired"])
    assert [{"reason": ABOVE, "keys": 1}] == route["left"]


@pytest.mark.parametrize("rig", [CACHE, SEARCH], indirect=True)
def test_a_field_that_no_column_has_is_found_and_repaired(rig, verify):
    """B7: a row with a surplus field is not the source's row."""
    rig.hand.add_field(7)
    found = verify()
    repaired = verify("--repair")
    after = verify()

    assert (1, [("surplus", "7")]) == found[:2]
    assert "stray" == found[2]["first"][0]["column"]
    assert (0, 1, []) == (repaired[0], repaired[2]["repaired"], repaired[2]["left"])
    assert (0, []) == after[:2]


@pytest.mark.parametrize("rig", [WAREHOUSE], indirect=True)
def test_a_row_that_stands_twice_is_told_as_such(rig, verify):
    """A row read again replaces both, so the report says what does help."""
    rig.hand.copy(7)
    rig.hand.alter(7, -1)
    rig.hand.lose(8)
    code, found, route = verify("--repair")

    assert (1, [("twice", "7")], 1) == (code, found, route["repaired"])
    assert [{"reason": TWICE, "keys": 1}] == route["left"]


@on_each
def test_keys_that_no_row_replaces_are_erased_and_read_again(rig, verify):
    """
    B7: a row above all positions, with and without one in the source, or one twice.

    Nothing is erased unless that is asked for; then only these keys are, and a later
    change of theirs counts again. A refill brings none of the planted rows back.
    """
    planted = [7, 500]
    for key in planted:
        rig.hand.put(key, -1, ABOVE_ALL)
    if isinstance(rig.hand, WarehouseHand):
        planted.append(9)
        rig.hand.copy(9)
    with rig.processing_requests():
        assert 2 == run(["verify", "it", "--erase", "--config", str(rig.config)])
        repaired = verify("--repair")
        erased = verify("--repair", "--erase")
        rig.execute("update s.a set v = v + 1 where id = any(%s)", planted)
        rig.execute("insert into s.a values (500, 5)")
        after = verify()
        rig.execute("delete from s.a where id = 500")
        rig.signal("refill", data_collections=["s.a"], sweep=True, target="it")
        rig.wait_for_answer("refill")
        refilled = verify()

    assert (1, sorted(map(str, planted))) == (
        repaired[0],
        [key for _, key in sorted(repaired[1], key=itemgetter(1))],
    )
    assert (0, len(planted), []) == (
        erased[0],
        erased[2]["repaired"],
        erased[2]["left"],
    )
    assert (0, []) == after[:2]
    assert (0, []) == refilled[:2]


@pytest.mark.parametrize("rig", [CACHE], indirect=True)
def test_a_foreign_row_does_not_prevent_repairs(rig, verify):
    """
    A key that cannot be the table's is reported; the others are requested.
    """
    for key in ("no number", "1:2", "007", "99999999999"):
        rig.hand.put(key, 1, OLD)
    rig.hand.lose(8)
    code, found, route = verify("--repair")

    assert (1, 4, 1) == (code, len(found), route["repaired"])
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
    made.hands = {name: CacheHand(stack.redis_url, unique, name) for name in COLUMNS}
    try:
        with made.followed():
            yield made
    finally:
        made.close()


def test_keys_of_every_type_are_repaired(typed, capsys):
    """A changed, a lost and a revived row are read again by any key there is."""
    for name in COLUMNS:
        typed.execute(
            f"delete from s.{name} where ctid ="  # noqa: S608 - the test's own
            f" (select max(ctid) from s.{name})"
        )
    typed.catch_up()
    typed.wait_for(lambda: not typed.is_behind())
    kinds = {"changed", "missing", "extra"}
    for hand in typed.hands.values():
        gone = [key for key in hand.names() if hand.is_deleted(key)]
        first, second, _ = (key for key in hand.names() if key not in gone)
        hand.alter(first, -1)
        hand.lose(second)
        hand.revive(*gone)
    before, found = typed.verify(capsys)
    after, repaired = typed.verify(capsys, "--repair")

    missed = [r for r in found["routes"] if {d["kind"] for d in r["first"]} != kinds]
    left = [r for r in repaired["routes"] if (r["repaired"], r["left"]) != (3, [])]

    assert (1, [], len(COLUMNS)) == (before, missed, len(found["routes"]))
    assert (0, []) == (after, left)
