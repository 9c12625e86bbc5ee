"""The OpenAPI document of the orders service, checked on a running service."""

from pathlib import Path

import pytest

from support.api_conformance import conformance_report
from support.orders_service import orders_service

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_every_response_matches_the_openapi_document(database: str, tmp_path: Path):
    """
    Schemathesis finds no response that violates the document.
    """
    with orders_service(database, tmp_path) as service:
        code, report = conformance_report(service, tmp_path, "support.orders_requests")

    assert 0 == code, report
