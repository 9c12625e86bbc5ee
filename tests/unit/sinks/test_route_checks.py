"""Routes are checked against the tables that they read."""

from dataclasses import replace

import pytest

from towpath.settings import Route
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.errors import RouteMistakesError, ShapeUnknownError
from towpath.sinks.kinds import RoutedRelations, route_mistakes

TOPIC = "towpath.shop.lines"
SHAPE = RelationShape(
    "shop",
    "lines",
    (Column("order_id", "bigint"), Column("no", "integer"), Column("note", "text")),
    ("order_id", "no"),
    "00000000016b3748.0000000002",
)


class AnnouncedShapes:
    """Announcements of one table, which may be known only after a refresh."""

    def __init__(self, *, is_known=True, announced=SHAPE):
        self.is_known = is_known
        self.announced = announced

    def shape(self, topic):
        """Return the shape of the table."""
        if topic != TOPIC or not self.is_known:
            raise ShapeUnknownError(topic)
        return self.announced

    def refresh(self):
        """Learn the shape."""
        self.is_known = True


def route(**options) -> Route:
    """Make a route for the table."""
    return Route.model_validate({"topic": TOPIC, "name": "lines"} | options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"include": ["order_id", "no", "not"]}, "include: no column not; .* 'note'"),
        ({"exclude": ["nots"]}, "exclude: no column nots; did you mean 'note'"),
        ({"rename": {"nota": "x"}}, "rename: no column nota; did you mean 'note'"),
        ({"fields": {"nota": "uuid"}}, "fields: no column nota; did you mean 'note'"),
        ({"exclude": ["no"]}, "the key column no is left out"),
        ({"include": ["order_id"]}, "the key column no is left out"),
        ({"rename": {"note": "no"}}, "two columns get the name no"),
        ({"constants": {"note": 1}}, "two columns get the name note"),
        ({"key": "{order_id}"}, r"once each, in key order: \{order_id\}:\{no\}"),
        ({"key": "{no}:{order_id}"}, "in key order"),
    ],
)
def test_a_route_that_does_not_fit_its_table_is_a_mistake(options, expected):
    """
    Each mistake is reported with its route, its table and the nearest name.
    """
    with pytest.raises(
        RouteMistakesError, match=rf"lines \(shop.lines\): .*{expected}"
    ):
        RoutedRelations(AnnouncedShapes(), [route(**options)]).shape(TOPIC)


def test_a_route_that_fits_has_no_mistakes():
    """
    A column's name may be reused once the column is renamed.
    """
    one = route(
        rename={"no": "line", "note": "no"},
        constants={"note": "n"},
        key="o:{order_id}:{no}",
        fields={"no": "uuid"},
    )

    assert [] == route_mistakes(one, SHAPE)


def test_all_mistakes_of_a_sinks_routes_are_reported_together():
    """
    Mistakes of several routes are in one message; an unannounced table has none yet.
    """
    several = [
        route(exclude=["no", "nothing"]),
        route(rename={"x": "y"}),
        route(topic="towpath.shop.later", exclude=["any"]),
    ]
    with pytest.raises(RouteMistakesError) as caught:
        RoutedRelations(AnnouncedShapes(), several).check()

    assert 3 == len(str(caught.value).split("\n"))


@pytest.mark.parametrize("key", ["", "{no}"])
def test_a_table_without_a_key_is_a_mistake(key):
    """
    No sink could identify its rows; this is reported once, along with other mistakes.
    """
    relations = RoutedRelations(
        AnnouncedShapes(announced=replace(SHAPE, key=())),
        [route(key=key, exclude=["zzz"])],
    )
    with pytest.raises(RouteMistakesError) as caught:
        relations.check()
    keyless, excluded = str(caught.value).split("\n")

    assert keyless.startswith("lines (shop.lines): the table has no key: give it")
    assert excluded.startswith("lines (shop.lines): exclude: no column zzz")


def test_a_table_that_lost_its_key_still_has_a_shape():
    """
    Sinks with several tables hold back such a table, and continue with the others.
    """
    keyless = replace(SHAPE, key=())
    relations = RoutedRelations(AnnouncedShapes(announced=keyless), [route()])

    assert ([], keyless) == (relations.check(has_run=True), relations.shape(TOPIC))


def test_an_unannounced_table_is_reported():
    """
    The table is checked again when its first rows arrive.
    """
    relations = RoutedRelations(AnnouncedShapes(is_known=False), [route()])

    assert [TOPIC] == relations.check()
    relations.refresh()
    assert [] == relations.check()


def test_sinks_see_tables_as_routes_transform_them():
    """
    A route without options leaves the table as it was announced.
    """
    changed = RoutedRelations(AnnouncedShapes(), [route(rename={"note": "remark"})])
    names = [column.name for column in changed.shape(TOPIC).columns]

    assert ["order_id", "no", "remark"] == names
    assert SHAPE == RoutedRelations(AnnouncedShapes(), [route()]).shape(TOPIC)


def test_one_topic_has_one_shape_or_none():
    """
    With two shapes of a topic, a request for its shape would be ambiguous.
    """
    same = [route(name="a", key="{order_id}:{no}"), route(name="b")]
    other = [*same, route(name="c", exclude=["note"])]

    assert SHAPE == RoutedRelations(AnnouncedShapes(), same).shape(TOPIC)
    with pytest.raises(RouteMistakesError, match="two shapes"):
        RoutedRelations(AnnouncedShapes(), other).shape(TOPIC)


def test_a_name_that_the_target_cannot_store_must_be_renamed_or_excluded():
    """
    The names after renaming count; an excluded column is never written.
    """

    def unfit_name(name):
        return "is too short" if name == "no" else ""

    found = route_mistakes(route(), SHAPE, unfit_name)
    renamed = route_mistakes(route(rename={"no": "line"}), SHAPE, unfit_name)

    assert [
        "lines (shop.lines): the column name 'no' is too short: rename or exclude it"
    ] == found
    assert [] == renamed
