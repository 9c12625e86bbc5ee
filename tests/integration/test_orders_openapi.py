"""The OpenAPI document of the orders service, against a running one."""

from pathlib import Path

import pytest

from support.api_conformance import conformance_report
from support.orders_service import orders_service

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_every_answer_of_the_service_is_as_its_document_describes_it(
    database: str, tmp_path: Path
):
    """
    Schemathesis finds no answer that differs from the document.
    """
    with orders_service(database, tmp_path) as service:
        code, report = conformance_report(service, tmp_path, "support.orders_requests")

    assert 0 == code, report
