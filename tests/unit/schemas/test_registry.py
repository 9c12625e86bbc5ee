"""
Addresses at which no schema registry can be.
"""

from contextlib import closing

import pytest

from towpath.schemas.failure import RegistryRefusedError
from towpath.schemas.registry import SchemaRegistry


@pytest.mark.parametrize(
    "url",
    [
        f"http://{'a' * 64}.example",
        "http://user:p%E2%82%AC@127.0.0.1:1",
        "registry:8081",
        "http://[::1",
    ],
)
def test_an_address_that_no_request_can_have_is_refused(url):
    """
    The password, which the address may contain, is not repeated.
    """
    registry = SchemaRegistry(url)
    with closing(registry), pytest.raises(RegistryRefusedError) as refused:
        registry.ping()

    assert "the address of the schema registry is not a valid URL" == str(refused.value)


def test_certificates_that_cannot_be_read_are_named(monkeypatch):
    """
    The path is in a variable, which neither the address nor the file shows.
    """
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere/ca.pem")
    registry = SchemaRegistry("https://127.0.0.1:1")

    with closing(registry), pytest.raises(RegistryRefusedError, match="/nowhere/ca"):
        registry.ping()
