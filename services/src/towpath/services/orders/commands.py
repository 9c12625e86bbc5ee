"""The commands of the service, as validated input; their names are imperatives."""

import uuid
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
)

from towpath.services.orders.domain import AttributeValue
from towpath.services.plumbing.http import (
    WITHOUT_NUL,
    Input,
    Integer,
    Price,
    without_nul,
)

MAX_LINES: Final = 100
MAX_QUANTITY: Final = 1_000_000
MAX_ATTRIBUTES: Final = 50
# Larger integers are JSON too, but most readers of JSON round them.
_MAX_INTEGER: Final = 2**53 - 1


def _attribute(value: AttributeValue) -> AttributeValue:
    if isinstance(value, str):
        without_nul(value)
    elif isinstance(value, int) and abs(value) > _MAX_INTEGER:
        message = f"must be from -{_MAX_INTEGER} to {_MAX_INTEGER}"
        raise ValueError(message)
    return value


# The rules of the validators, repeated as patterns for the OpenAPI document.
_NO_NUL: Final = Field(json_schema_extra={"pattern": WITHOUT_NUL})
Name = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=200),
    AfterValidator(without_nul),
    Field(json_schema_extra={"pattern": r"^[^\x00]*[^\s\x00][^\x00]*$"}),
]
Email = Annotated[
    str,
    StringConstraints(max_length=320, pattern=r"^[^@\s]+@[^@\s]+$"),
    AfterValidator(without_nul),
    # U+0085 is white space to pydantic's patterns, and not to those of JSON Schema.
    Field(json_schema_extra={"pattern": r"^[^@\s\x00\x85]+@[^@\s\x00\x85]+$"}),
]
Note = Annotated[
    str,
    StringConstraints(min_length=1, max_length=2_000),
    AfterValidator(without_nul),
    _NO_NUL,
]
AttributeName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=100),
    AfterValidator(without_nul),
    _NO_NUL,
]
Attribute = Annotated[
    Annotated[str, StringConstraints(max_length=1_000), _NO_NUL]
    | Annotated[
        Integer,
        Field(json_schema_extra={"minimum": -_MAX_INTEGER, "maximum": _MAX_INTEGER}),
    ]
    | bool
    | None,
    AfterValidator(_attribute),
]

Attributes = Annotated[
    dict[AttributeName, Attribute],
    Field(
        max_length=MAX_ATTRIBUTES,
        # A name that does not match the pattern is not allowed.
        json_schema_extra={"additionalProperties": False},
    ),
]


PaymentMethod = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,63}$")]


class RegisterCustomer(Input):
    """Register a customer."""

    name: Name
    email: Email


class OrderedLine(Input):
    """A quantity of one product at a price."""

    product_id: uuid.UUID
    quantity: Integer = Field(ge=1, le=MAX_QUANTITY)
    unit_price: Price


class PlaceOrder(Input):
    """Place an order; with a payment method, payment is requested immediately."""

    customer_id: uuid.UUID
    currency: str = Field(default="EUR", pattern=r"^[A-Z]{3}$")
    note: Note | None = None
    attributes: Attributes | None = None
    payment_method: PaymentMethod | None = None
    lines: Sequence[OrderedLine] = Field(min_length=1, max_length=MAX_LINES)


class PayOrder(Input):
    """Pay for an order, by card if no other method is given."""

    payment_method: PaymentMethod = "card"


class CancelOrder(Input):
    """Cancel an order, with or without a reason."""

    reason: Note | None = None


class ReturnOrder(Input):
    """Return the goods of an order, with or without a reason."""

    reason: Note | None = None
