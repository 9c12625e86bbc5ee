"""The shapes of a load: their area, their files, and mistakes in them."""

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
    At four per second, an arrival is due every quarter of a second.
    """
    assert [0.25, 0.5, 0.75, 1.0] == arrivals(STEADY, 4.0, 1.0)


def test_a_spike_multiplies_the_arrivals_from_its_beginning():
    """
    There are 20 in the ten seconds before the spike and 280 within it.
    """
    due = arrivals(SPIKE, 2.0, 19.99)
    before = [at_s for at_s in due if at_s <= 10.0]
    within = [at_s for at_s in due if 10.0 < at_s <= 20.0]

    assert (20, 280) == (len(before), len(within))
    assert round(10.0 + 1 / 28, 6) == within[0]


def test_a_ramp_has_as_many_arrivals_as_its_area():
    """
    From 0 to 10 per second in 20 seconds, a hundred arrive at shrinking intervals.
    """
    ramp = Shape(((0.0, 0.0), (20.0, 1.0)))
    due = arrivals(ramp, 10.0, 19.99)
    gaps = [later - one for one, later in pairwise(due)]

    assert 100 == len(due)
    assert 20.0 == pytest.approx(due[-1])
    assert gaps == sorted(gaps, reverse=True)


def test_a_falling_line_is_followed():
    """
    It mirrors the ramp: half of its arrivals are due in the first three tenths.
    """
    falling = Shape(((0.0, 1.0), (20.0, 0.0)))

    assert 20 * (1 - math.sqrt(0.5)) == pytest.approx(falling.after(0.0, 5.0))


def test_no_arrival_is_due_while_the_factor_is_zero():
    """
    A wait continues across a quiet stretch; after a zero at the end it never ends.
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
def test_an_invalid_shape_gives_one_clear_error(tmp_path, text, reason):
    """
    It names the file and the expected form.
    """
    path = tmp_path / "odd.toml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(LoadOptionError, match=rf"odd\.toml: .*{reason}"):
        read_shape(str(path))


def test_the_error_for_an_unknown_shape_lists_the_known_shapes():
    """
    The user may have mistyped one of them.
    """
    with pytest.raises(LoadOptionError, match="one of black_friday, ramp, soak, spike"):
        read_shape("tsunami")
