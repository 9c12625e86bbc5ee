"""
Schemathesis hooks for orders and the storefront: real ids for valid requests.

The document cannot describe which customers exist, which keys are used, which version
an order has, or which cursors and LSNs were issued. Requests that are invalid on
purpose are left unchanged.
"""

import functools
import os
import re
import uuid
from typing import Any

import requests
import schemathesis
from schemathesis.generation.meta import ParameterLocation

from support.api_conformance import is_valid, make_sendable

# Set by the test that starts Schemathesis.
SERVICE_URL = os.environ["SERVICE_URL"]  # noqa: TID251

_LSN = re.compile("[0-9A-F]{1,8}/[0-9A-F]{1,8}", re.IGNORECASE)


@functools.cache
def customer_id() -> str:
    """Register a customer once."""
    url = SERVICE_URL + "/customers"
    body = {"name": "Ada", "email": "ada@example.org"}
    return requests.post(url, json=body, timeout=10).json()["customer_id"]


@functools.cache
def order_id() -> int:
    """Place an order once."""
    url = SERVICE_URL + "/orders"
    line = {"product_id": str(uuid.uuid4()), "quantity": 1, "unit_price": "9.99"}
    body = {"customer_id": customer_id(), "lines": [line]}
    return requests.post(url, json=body, timeout=10).json()["order_id"]


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
    """Change the parts of a request that are valid according to the document."""
    make_sendable(case)
    if is_valid(case, ParameterLocation.HEADER) and "If-Match" in case.headers:
        case.headers["If-Match"] = "*"
    # The storefront under test cannot wait for an LSN, and responds with 501.
    lsn = case.headers.get("Towpath-Lsn", "")
    if is_valid(case, ParameterLocation.HEADER) or _LSN.fullmatch(lsn):
        case.headers.pop("Towpath-Lsn", None)
    if is_valid(case, ParameterLocation.QUERY):
        case.query.pop("cursor", None)
    if is_valid(case, ParameterLocation.PATH) and "order_id" in case.path_parameters:
        case.path_parameters["order_id"] = order_id()
    if (
        is_valid(case, ParameterLocation.BODY)
        and case.operation.label == "POST /orders"
    ):
        make_affordable(case.body)


def make_affordable(body: Any) -> None:
    """Give an order a known customer, and a total within the limit."""
    body["customer_id"] = customer_id()
    for line in body["lines"]:
        line["quantity"] = 1 + line["quantity"] % 10
        line["unit_price"] = line["unit_price"][-4:].lstrip(".")
