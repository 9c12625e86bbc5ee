"""
Addresses and certificates of schema registries that cannot work.
"""

from contextlib import closing

import pytest

from support.secure_kafka import write_certificates
from support.tls_proxy import tls_in_front_of
from towpath.schemas.failure import RegistryRefusedError, RegistryUnavailableError
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
def test_an_address_that_no_request_can_use_is_refused(url):
    """
    The address may contain a password, so the error does not repeat it.
    """
    registry = SchemaRegistry(url)
    with closing(registry), pytest.raises(RegistryRefusedError) as failure:
        registry.ping()

    assert "the address of the schema registry is not a valid URL" == str(failure.value)


def test_certificates_that_cannot_be_read_are_reported(monkeypatch):
    """
    The path comes from an environment variable, so the error must name it.
    """
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere/ca.pem")
    registry = SchemaRegistry("https://127.0.0.1:1")

    with closing(registry), pytest.raises(RegistryRefusedError, match="/nowhere/ca"):
        registry.ping()


def test_a_certificate_of_an_unknown_authority_is_refused_with_a_remedy(
    tmp_path, monkeypatch
):
    """
    Retrying cannot help until a variable names a file with the authority's certificate.
    """
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    write_certificates(tmp_path)
    with (
        tls_in_front_of(1, tmp_path / "broker.pem") as port,
        closing(SchemaRegistry(f"https://user:secret@127.0.0.1:{port}")) as registry,
    ):
        with pytest.raises(RegistryRefusedError) as failure:
            registry.ping()
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        with pytest.raises(RegistryUnavailableError, match="reached: ConnectionError"):
            registry.ping()

    assert (
        "the certificate of the schema registry is not trusted: unable to get local "
        "issuer certificate; if its authority is unknown here, REQUESTS_CA_BUNDLE must "
        "name a file with the authority's certificate"
    ) == str(failure.value)


@pytest.mark.parametrize(
    ("age_days", "reason"),
    [(3, "certificate has expired"), (-1, "certificate is not yet valid")],
)
def test_a_certificate_outside_its_validity_is_retried(
    age_days, reason, tmp_path, monkeypatch
):
    """
    The registry may get a new certificate, or the certificate may become valid.
    """
    write_certificates(tmp_path, age_days)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    with (
        tls_in_front_of(1, tmp_path / "broker.pem") as port,
        closing(SchemaRegistry(f"https://127.0.0.1:{port}")) as registry,
        pytest.raises(RegistryUnavailableError) as failed,
    ):
        registry.ping()

    assert f"the certificate of the schema registry is not trusted: {reason}" == str(
        failed.value
    )
