"""Transforms in Python: a function of an installed package changes or drops rows."""

import sys
import tomllib
from pathlib import Path

import pytest

from support.pages import DOCS, blocks
from support.parked_shop import SINK, TOPIC, Shop, change
from towpath.schemas.failure import ConfigurationError
from towpath.settings import Route, Sink
from towpath.settings.transforms import Transform
from towpath.sinks.change import UnreadableError
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.changes.routing import routing_of
from towpath.sinks.changes.transforms import LacksColumnsError, RowTransforms
from towpath.sinks.errors import TransformBrokenError
from towpath.sinks.kinds import check_kinds, route_mistakes
from towpath.sinks.verify.errors import IncomparableError
from towpath.sinks.verify.forms import form_of
from towpath.sinks.verify.table import SourceColumn, SourceTable

MODULE = """
def length(row):
    if row["note"] == "bad":
        raise ValueError("a bad note")
    if row["note"] == "drop":
        return None
    return {"length": len(row["note"] or "")}

def whole(row):
    row["note"] = row["note"].upper()
    return row

def seen(row):
    return {"seen": ",".join(sorted(row))}

def odd(row):
    return {
        "list": [], "other": {"status": 1}, "new": {"x": 1}, "nothing": {},
        "wide": {"length": 2**70}, "word": "x",
        "half": {"length": "\\ud800"}, "nan": {"length": float("nan")},
    }[row["note"]]

NONE = 7
"""


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch) -> None:
    """Install a package with several transforms; two of them cannot be used."""
    about = tmp_path / "notes-1.0.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text("Name: notes\nVersion: 1.0\n")
    names = ("length", "whole", "seen", "odd")
    lines = [f"{name} = notes_of_rows:{name}" for name in names]
    lines += ["none = notes_of_rows:NONE", "gone = notes_of_sand:x"]
    about.joinpath("entry_points.txt").write_text(
        "\n".join(["[towpath.transforms]", *lines])
    )
    tmp_path.joinpath("notes_of_rows.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "notes_of_rows", raising=False)


LENGTH = {"python": "length", "reads": ["note"], "writes": {"length": "integer"}}


def route(*transforms, **options) -> Route:
    """Make a route with transforms."""
    document = {"topic": TOPIC, "name": "orders", "transforms": [*transforms]}
    return Route.model_validate(document | options)


def sink(*transforms, **options) -> Sink:
    """Describe a sink with one such route."""
    document = SINK.model_dump(exclude_defaults=True)
    return Sink.model_validate({**document, "route": [route(*transforms, **options)]})


def apply(row, *transforms, unchanged=()):
    """Apply transforms to a row."""
    return RowTransforms(route(*transforms), {}).apply(row, frozenset(unchanged))


def test_a_function_writes_its_columns_or_drops_the_row():
    """
    The function sees the row as earlier entries left it.
    """
    masked = {"mask": "note"}

    assert {"note": "abc", "length": 3} == apply({"note": "abc"}, LENGTH).row
    assert {"note": "****", "length": 4} == apply({"note": "a"}, masked, LENGTH).row
    assert apply({"note": "drop"}, LENGTH) is None


def test_a_function_sees_the_columns_that_it_reads():
    """
    Without ``reads``, it sees all columns; a column that the row does not have is null.
    """
    writes = {"seen": "text"}
    some = {"python": "seen", "reads": ["b", "x"], "writes": writes}
    row = {"a": 1, "b": 2}

    assert "b,x" == apply(row, some).row["seen"]
    assert "a,b" == apply(row, {"python": "seen", "writes": writes}).row["seen"]


def test_a_function_may_return_the_row_with_its_columns_changed():
    """
    It gets a copy of the row; a change to a column that it may not write is refused.
    """
    row = {"note": "a", "b": 1}
    allowed = {"python": "whole", "writes": {"note": "text"}}

    assert {"note": "A", "b": 1} == apply(row, allowed).row
    assert {"note": "a", "b": 1} == row
    with pytest.raises(
        UnreadableError,
        match="whole changed note, which its route does not list in writes",
    ):
        apply(row, {"python": "whole"})


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        ("list", "odd returned a list"),
        ("word", "odd returned a str"),
        ("other", "odd changed status, which its route does not list in writes"),
        ("new", "odd changed x"),
        ("wide", "of length cannot be cast to integer"),
        ("unknown", "odd failed: KeyError: 'unknown'"),
    ],
)
def test_a_row_with_an_invalid_result_is_refused(note, expected):
    """
    The reason names the function.
    """
    entry = {**LENGTH, "python": "odd"}

    with pytest.raises(UnreadableError, match=expected):
        apply({"note": note, "status": "s"}, entry)
    assert apply({"note": "nothing"}, entry).row["length"] is None


def test_a_function_is_never_called_without_a_column_that_it_reads():
    """
    The function might drop the row, so the entry cannot simply be skipped.
    """
    with pytest.raises(LacksColumnsError, match="lacks: note"):
        apply({}, LENGTH, unchanged={"note"})
    with pytest.raises(LacksColumnsError, match="lacks: b"):
        apply({"note": "a"}, {"python": "whole"}, unchanged={"b"})
    found = apply({"note": "abc"}, LENGTH, unchanged={"b", "length"})
    assert ({"note": "abc", "length": 3}, {"b"}) == (found.row, {*found.unchanged})


SHAPE = RelationShape(
    "shop",
    "orders",
    (Column("order_id", "bigint"), Column("note", "text"), Column("tags", "text[]")),
    ("order_id",),
    "",
)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"python": "length", "reads": ["notes"]}, "no column notes; did you mean"),
        ({"python": "whole", "writes": {"order_id": "bigint"}}, "a column of the key"),
    ],
)
def test_columns_that_do_not_fit_the_table_are_a_mistake(entry, expected):
    """
    Such mistakes are found before the sink starts.
    """
    (mistake,) = route_mistakes(route(entry), SHAPE)

    assert expected in mistake


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        ("half", "odd returned text that is not valid Unicode for length"),
        ("nan", "odd returned nan for length"),
    ],
)
def test_a_row_with_a_value_that_no_record_can_have_is_refused(note, expected):
    """
    A target could not encode it, or would store different text.
    """
    entry = {**LENGTH, "python": "odd", "writes": {"length": "text"}}

    with pytest.raises(UnreadableError, match=expected):
        apply({"note": note}, entry)


def test_a_function_may_read_arrays_and_its_columns_have_the_declared_types():
    """
    Without ``reads``, any column may determine whether the sink has a row.
    """
    one = route({"python": "seen", "writes": {"seen": "numeric(5, 1)", "note": "date"}})
    shape = routing_of(one).shape(SHAPE)

    assert [] == route_mistakes(one, SHAPE)
    assert {
        "order_id": "bigint",
        "note": "date",
        "tags": "text[]",
        "seen": "numeric",
    } == {column.name: column.type for column in shape.columns}
    assert routing_of(one).is_used("tags", SHAPE.columns)


def test_the_error_for_a_transform_that_is_not_installed_suggests_the_nearest_name():
    """
    Names are known without importing anything.
    """
    with pytest.raises(ConfigurationError, match=r"provides 'lenght' .*'length'"):
        check_kinds([sink({"python": "lenght"})])
    check_kinds([sink(LENGTH)])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gone", "cannot be imported: No module named 'notes_of_sand'"),
        ("none", r"none \(notes_of_rows:NONE\) is not a function"),
    ],
)
def test_a_transform_that_cannot_be_imported_keeps_the_sink_from_starting(
    name, expected
):
    """
    The reason is reported before a row is read.
    """
    with pytest.raises(TransformBrokenError, match=expected):
        check_kinds([sink({"python": name})])


def test_a_transform_that_is_removed_later_stops_the_sink():
    """
    The sink's rows would be wrong without the transform.
    """
    with pytest.raises(TransformBrokenError, match="no installed package provides"):
        RowTransforms(route({"python": "never"}), {})


@pytest.mark.parametrize("in_slices", [False, True])
def test_an_error_in_a_function_parks_the_key(in_slices):
    """
    Later changes to the key wait; other keys are written, and the reason is kept.
    """
    one = Shop(accepts_repairs=True, settings=sink(LENGTH), in_slices=in_slices)
    one.write(change(1, "c", note="abc"), change(1, "c", order=8, note="a"))
    one.write(change(2, note="bad"), change(3, order=8, note="drop"))
    one.write(change(4, note="abcd"))
    rows = one.sink.rows["orders"]

    assert [
        (2, "the transform length failed: ValueError: a bad note"),
        (4, "parked behind an earlier change of its key"),
    ] == one.letters.reasons()
    assert (3, None) == (rows["7"].row["length"], rows["8"].row)


TABLE = SourceTable(
    "shop",
    "orders",
    (SourceColumn("order_id", "bigint"), SourceColumn("note", "text")),
    ("order_id",),
)


def test_the_verifier_calls_the_function():
    """
    A row that the function refuses counts as different, and the reason is shown.
    """
    given = sink(LENGTH)
    form = form_of(given.route[0], TABLE, given)
    rows = form.source_rows([("7", "abc"), ("8", "drop"), ("9", "bad")])

    assert [("7", ["7", "abc", "3"])] == [(r.key, list(r.texts)) for r in rows[:1]]
    assert ["9"] == [row.key for row in rows[1:]]
    assert "a bad note" in rows[1].texts[0]


def test_the_output_of_a_function_that_reads_a_masked_column_cannot_be_compared():
    """
    It can if ``reads`` names only other columns.
    """
    hidden = SourceTable(
        *(TABLE.schema, TABLE.name, TABLE.columns, TABLE.key), unread=("secret",)
    )
    every, some = sink({"python": "seen", "writes": {"seen": "text"}}), sink(LENGTH)

    with pytest.raises(IncomparableError, match="secret"):
        form_of(every.route[0], hidden, every)
    assert "length" in form_of(some.route[0], hidden, some).columns


def test_the_function_on_the_page_does_what_the_page_says(tmp_path, monkeypatch):
    """
    Its module is copied verbatim from the page, its metadata from the page's project.
    """
    text = (DOCS / "transforms.md").read_text(encoding="utf-8")
    given = [b for b in blocks(text) if b.language in {"toml", "python"}]
    (index,) = [n for n, b in enumerate(given) if b.language == "python"]
    project = tomllib.loads(given[index - 1].text)["project"]
    (points,) = project["entry-points"].values()
    about = tmp_path / "shop_transforms-1.0.0.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text(f"Name: {project['name']}\nVersion: 1.0.0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    about.joinpath("entry_points.txt").write_text(
        "\n".join([f"[{next(iter(project['entry-points']))}]", *lines])
    )
    tmp_path.joinpath("shop_transforms.py").write_text(given[index].text)
    monkeypatch.delitem(sys.modules, "shop_transforms", raising=False)
    route_text = tomllib.loads(given[index + 1].text)
    (entry,) = route_text["sink"]["route"]["transforms"]

    assert Transform.model_validate(entry).verb == "python"
    assert {"total": "12.50", "size": "small", "cents": 1250} == (
        apply({"total": "12.50"}, entry).row
    )
    assert "large" == apply({"total": "1000"}, entry).row["size"]
    assert apply({"total": None}, entry) is None
