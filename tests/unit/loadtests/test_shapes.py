"""The shapes of a load: their area, their files, and their mistakes."""

import math
from itertools import pairwise

import pytest

from towpath.loadtests.errors import LoadOptionError
from towpath.loadtests.load.shapes import STEADY, Shape, read_shape, shape_files

SPIKE = Shape(((0.0, 1.0), (10.0, 1.0), (10.0, 14.0), (20.0, 14.0)))


def arrivals(shape, rate, until_s):
    """Return the due times of one stream at a rate."""
    times = [0.0]
    while times[-1] < until_s:
        times.append(shape.after(times[-1], 1 / rate))
    return [round(at_s, 6) for at_s in times[1:]]


def test_a_steady_rate_has_equal_intervals():
    """
    At four a second, an arrival is due every quarter of a second.
    """
    assert [0.25, 0.5, 0.75, 1.0] == arrivals(STEADY, 4.0, 1.0)


def test_a_spike_multiplies_the_arrivals_from_its_first_moment():
    """
    Twenty in the ten seconds before it and 280 within it.
    """
    due = arrivals(SPIKE, 2.0, 19.99)
    before = [at_s for at_s in due if at_s <= 10.0]
    within = [at_s for at_s in due if 10.0 < at_s <= 20.0]

    assert (20, 280) == (len(before), len(within))
    assert round(10.0 + 1 / 28, 6) == within[0]


def test_a_ramp_has_as_many_arrivals_as_its_area():
    """
    From 0 to 10 a second in 20 seconds: a hundred, ever closer to each other.
    """
    ramp = Shape(((0.0, 0.0), (20.0, 1.0)))
    due = arrivals(ramp, 10.0, 19.99)
    gaps = [later - one for one, later in pairwise(due)]

    assert 100 == len(due)
    assert 20.0 == pytest.approx(due[-1])
    assert gaps == sorted(gaps, reverse=True)


def test_a_line_downwards_is_followed_too():
    """
    The mirror of the ramp: half of its arrivals come in the first three tenths.
    """
    falling = Shape(((0.0, 1.0), (20.0, 0.0)))

    assert 20 * (1 - math.sqrt(0.5)) == pytest.approx(falling.after(0.0, 5.0))


def test_no_arrival_is_due_where_the_last_factor_is_zero():
    """
    A wait across a quiet stretch ends behind it; behind the last point none ends.
    """
    quiet = Shape(((0.0, 0.0), (30.0, 0.0), (30.0, 1.0), (40.0, 1.0), (40.0, 0.0)))

    assert (31.0, math.inf) == (quiet.after(0.0, 1.0), quiet.after(39.5, 1.0))


def test_every_included_shape_can_be_read():
    """
    The spike reaches fourteen times the rate, and each shape starts at second 0.
    """
    shapes = {name: read_shape(name) for name in shape_files()}

    assert ["black_friday", "ramp", "soak", "spike"] == sorted(shapes)
    assert 14.0 == shapes["spike"].highest
    assert {0.0} == {shape.points[0][0] for shape in shapes.values()}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("points = [[0, 1]]", "the last second and"),
        ("points = [[1, 1], [2, 1]]", "points must be pairs"),
        ("points = [[0, 1], [9, 1], [8, 1]]", "points must be pairs"),
        ("points = [[0, -1], [9, 1]]", "points must be pairs"),
        ("points = [[0, 0], [9, 0]]", "one factor must be above 0"),
        ("points = [[0, true], [9, 1]]", "points must be pairs"),
        ("points = [[0, 1, 2], [9, 1]]", "points must be pairs"),
        (f"points = [[0, 1], [9, {10**400}]]", "points must be pairs"),
        ("points = [[0, 1], [inf, 1]]", "points must be pairs"),
        ("points = 5", "points must be pairs"),
        ("points =", "Invalid value"),
    ],
)
def test_a_wrong_shape_is_one_sentence(tmp_path, text, reason):
    """
    It names the file, and the form that is expected.
    """
    path = tmp_path / "odd.toml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(LoadOptionError, match=rf"odd\.toml: .*{reason}"):
        read_shape(str(path))


def test_an_unknown_shape_names_the_known_ones():
    """
    The message lists what could be meant.
    """
    with pytest.raises(LoadOptionError, match="one of black_friday, ramp, soak, spike"):
        read_shape("tsunami")
