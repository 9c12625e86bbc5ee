"""
Schemathesis hooks for services other than orders: real ids for valid requests.

The document cannot describe which products exist, or which keys are used. Requests that
are invalid on purpose are left unchanged.
"""

import functools
import os
import uuid
from typing import Any

import requests
import schemathesis
from schemathesis.generation.meta import ParameterLocation

from support.api_conformance import is_valid, make_sendable

# Set by the test that starts Schemathesis.
SERVICE_URL = os.environ["SERVICE_URL"]  # noqa: TID251


@functools.cache
def product_id() -> str:
    """Register a product once."""
    body = {
        "product_id": str(uuid.uuid4()),
        "name": "A product",
        "unit_price": "1.00",
        "on_hand": 1,
    }
    response = requests.post(SERVICE_URL + "/products", json=body, timeout=10)
    return response.json()["product_id"]


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
    """Replace the product id in the path of a valid request with a real one."""
    make_sendable(case)
    if is_valid(case, ParameterLocation.PATH) and "product_id" in case.path_parameters:
        case.path_parameters["product_id"] = product_id()
