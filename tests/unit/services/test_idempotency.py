"""The requests that an idempotency key identifies."""

import pytest
from flask import Flask, request

from towpath.services.plumbing.http import InvalidInputError
from towpath.services.plumbing.idempotency import HEADER, claim_of

KEY = "k-1"


def claim(method: str, path: str, body: bytes = b"{}", key: str = KEY):
    """Read the claim of a request."""
    headers = {HEADER: key}
    context = Flask("shop").test_request_context(
        path, method=method, data=body, headers=headers
    )
    with context:
        return claim_of(request)


def test_an_idempotency_key_identifies_one_method_path_and_body():
    """
    A difference in any of them changes the hash; the same request has the same hash.
    """
    one = claim("POST", "/orders/1/pay")
    others = [
        claim("PUT", "/orders/1/pay"),
        claim("POST", "/orders/2/pay"),
        claim("POST", "/orders/1/pay", b'{"a":1}'),
    ]

    assert one == claim("POST", "/orders/1/pay")
    assert (4, {KEY}) == (
        len({each.request_hash for each in [one, *others]}),
        {each.key for each in others},
    )


@pytest.mark.parametrize("key", ["", "x" * 201, "a b", "ä"])
def test_an_idempotency_key_is_visible_ascii_of_limited_length(key: str):
    """
    Anything else is refused.
    """
    with pytest.raises(InvalidInputError):
        claim("POST", "/orders", key=key)


def test_a_request_without_an_idempotency_key_claims_nothing():
    """
    The header is optional, and its longest value has 200 characters.
    """
    with Flask("shop").test_request_context("/orders", method="POST"):
        assert claim_of(request) is None
    assert "x" * 200 == claim("POST", "/orders", key="x" * 200).key
