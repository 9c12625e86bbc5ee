"""Validation of the shop's commands, field by field."""

import json
from decimal import Decimal

import pytest
from pydantic import ValidationError

from towpath.services.orders.commands import PlaceOrder, RegisterCustomer

ID = "0af76519-16cd-43dd-8448-eb211c80319c"
LINE = {"product_id": ID, "quantity": 2, "unit_price": "9.9"}
ORDER = {"customer_id": ID, "lines": [LINE]}
CUSTOMER = {"name": "Ada", "email": "ada@example.org"}


def invalid_fields(model, document) -> list[tuple[int | str, ...]]:
    """Read a document as JSON; list the paths of its mistakes."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate_json(json.dumps(document))
    return [detail["loc"] for detail in caught.value.errors()]


def test_an_order_is_read_with_its_defaults():
    """
    Prices have two decimals; currency, note and attributes may be left out.
    """
    order = PlaceOrder.model_validate_json(json.dumps(ORDER))
    price = order.lines[0].unit_price

    expected = ("EUR", None, None, "9.90")

    assert expected == (order.currency, order.note, order.attributes, str(price))
    assert isinstance(price, Decimal)


@pytest.mark.parametrize(
    "price",
    [
        9.99,
        10,
        "9.999",
        "-1",
        "1e3",
        "NaN",
        "",
        "٣",
        " 1",
        "1\n",
        "99999999999",
        None,
    ],
)
def test_a_price_is_decimal_text_or_refused(price):
    """
    Numbers, signs, exponents, too many digits and digits of other scripts are refused.
    """
    document = ORDER | {"lines": [LINE | {"unit_price": price}]}

    assert invalid_fields(PlaceOrder, document) == [("lines", 0, "unit_price")]


@pytest.mark.parametrize("quantity", [0, -1, 1_000_001, 10**400, 1.5, "2", True, None])
def test_a_quantity_is_a_whole_number_in_its_range(quantity):
    """
    Quantities that are zero, negative, too large or not whole numbers are refused.
    """
    document = ORDER | {"lines": [LINE | {"quantity": quantity}]}

    assert invalid_fields(PlaceOrder, document) == [("lines", 0, "quantity")]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"customer_id": "7"}, ("customer_id",)),
        ({"lines": []}, ("lines",)),
        ({"lines": [LINE] * 101}, ("lines",)),
        ({"lines": [LINE | {"color": "red"}]}, ("lines", 0, "color")),
        ({"currency": "euro"}, ("currency",)),
        ({"note": ""}, ("note",)),
        ({"note": "a\0b"}, ("note",)),
        ({"note": "a" * 2_001}, ("note",)),
        ({"attributes": {str(n): 1 for n in range(51)}}, ("attributes",)),
        ({"status": "paid"}, ("status",)),
    ],
)
def test_an_invalid_order_names_the_field(change, path):
    """
    The path of the field is reported, and no other path.
    """
    assert invalid_fields(PlaceOrder, ORDER | change) == [path]


@pytest.mark.parametrize("value", ["a\0b", 2**53, [1], {"b": 1}, 1.5])
def test_an_attribute_is_a_small_plain_value(value):
    """
    NUL characters, huge numbers, fractions and nested values are refused.
    """
    paths = invalid_fields(PlaceOrder, ORDER | {"attributes": {"a": value}})

    assert {("attributes", "a")} == {path[:2] for path in paths}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"name": "  "}, ("name",)),
        ({"name": "A\0"}, ("name",)),
        ({"name": "A" * 201}, ("name",)),
        ({"email": "nobody"}, ("email",)),
        ({"email": "a@b\0"}, ("email",)),
        ({"customer_id": ID}, ("customer_id",)),
    ],
)
def test_an_invalid_customer_names_the_field(change, path):
    """
    The path of the field is reported, and no other path.
    """
    assert invalid_fields(RegisterCustomer, CUSTOMER | change) == [path]
