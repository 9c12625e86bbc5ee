"""A customer's choices."""

from random import Random

from towpath.loadtests.load.shop import basket


def seeded(seed):
    """Make a repeatable source of random numbers."""
    return Random(seed)  # noqa: S311 - not used for secrets


def test_a_basket_has_one_to_four_lines_of_known_products():
    """
    All sizes from one to four occur, and each basket has a known customer.
    """
    random = seeded(2)
    baskets = [basket(random, ("a", "b")) for _ in range(200)]
    expected = ({1, 2, 3, 4}, {"a", "b"})
    actual = ({len(b["lines"]) for b in baskets}, {b["customer_id"] for b in baskets})

    assert expected == actual


def test_prices_are_strings_with_two_decimals():
    """
    A price has exactly two digits after its point, even if they are zeros.
    """
    random = seeded(3)
    lines = [line for _ in range(300) for line in basket(random, ("a",))["lines"]]
    expected = {2}
    actual = {len(line["unit_price"].partition(".")[2]) for line in lines}

    assert expected == actual
