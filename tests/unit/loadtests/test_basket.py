"""A customer's choices."""

from random import Random

from towpath.loadtests.load.shop import basket


def seeded(seed):
    """Make a source of chance that repeats itself."""
    return Random(seed)  # noqa: S311 - chance for a test, no secret


def test_a_basket_has_one_to_four_lines_of_known_products():
    """
    Baskets of every size from one to four occur, each for a customer that was given.
    """
    random = seeded(2)
    baskets = [basket(random, ("a", "b")) for _ in range(200)]
    expected = ({1, 2, 3, 4}, {"a", "b"})
    actual = ({len(b["lines"]) for b in baskets}, {b["customer_id"] for b in baskets})

    assert expected == actual


def test_prices_are_text_with_two_digits():
    """
    A price has exactly two digits after its point, also when they are zeros.
    """
    random = seeded(3)
    lines = [line for _ in range(300) for line in basket(random, ("a",))["lines"]]
    expected = {2}
    actual = {len(line["unit_price"].partition(".")[2]) for line in lines}

    assert expected == actual
