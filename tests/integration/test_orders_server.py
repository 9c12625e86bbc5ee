"""The orders service as a process: its start, its requests over HTTP, and its stop."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import requests

from support.exposition import mistakes
from support.orders_service import STOP_TIMEOUT_S, Service, orders_service
from support.registry import registry_client
from support.waiting import until
from towpath.services.orders.events import shop_schemas

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

PRODUCT = "0af76519-16cd-43dd-8448-eb211c80319c"


@pytest.fixture
def service(stack, database: str, tmp_path: Path) -> Iterator[Service]:
    """Provide a service on a database with an outbox."""
    with orders_service(database, tmp_path, stack.registry_url) as running:
        yield running


def test_a_started_service_accepts_orders_and_has_registered_its_schemas(
    service: Service, stack
):
    """
    An order is placed and its payment requested; the registry has every event's schema.
    """
    ready = requests.get(service.url + "/health/ready", timeout=5)
    customer = service.post("/customers", {"name": "Ada", "email": "a@b"}).json()
    lines = [{"product_id": PRODUCT, "quantity": 1, "unit_price": "1.00"}]
    body = {"customer_id": customer["customer_id"], "lines": lines}
    order = service.post("/orders", body).json()
    paid = requests.post(f"{service.url}/orders/{order['order_id']}/pay", timeout=10)
    with closing(registry_client(stack.registry_url)) as client:
        subjects = client.get_subjects()

    assert (200, 200, "paying") == (
        ready.status_code,
        paid.status_code,
        paid.json()["status"],
    )
    assert {s.subject for s in shop_schemas().newest.values()} <= set(subjects)


def test_many_concurrent_clients_are_all_served(service: Service):
    """
    If there are more requests than threads, some wait, but none fails.
    """
    with ThreadPoolExecutor(24) as pool:
        customers = [{"name": str(n), "email": "a@b"} for n in range(120)]
        responses = list(pool.map(lambda c: service.post("/customers", c), customers))

    assert {201} == {a.status_code for a in responses}


def test_the_service_serves_its_metrics(service: Service):
    """
    The page has requests, committed outbox rows and unfinished sagas under valid names.
    """
    order = {"customer_id": "", "lines": []}
    customer = service.post("/customers", {"name": "Ada", "email": "a@b"}).json()
    lines = [{"product_id": PRODUCT, "quantity": 1, "unit_price": "1.00"}]
    placed = order | {"customer_id": customer["customer_id"], "lines": lines}
    codes = [service.post("/orders", body).status_code for body in (placed, order)]
    until(
        lambda: 'towpath_service_sagas{status="placed"} 1.0' in metrics_page(service),
        "the saga is counted",
    )
    page = metrics_page(service)

    assert [201, 422] == codes
    assert [] == mistakes(page, ("towpath_service_", "towpath_inbox_"))
    counts = dict(line.rsplit(" ", 1) for line in page.splitlines())
    rows, requests_ = "towpath_service_outbox_rows_total", "request_seconds_count"
    assert {"1.0"} == {
        counts[f'{rows}{{event="OrderPlaced"}}'],
        counts[f'{rows}{{event="CustomerRegistered"}}'],
        *(
            counts[
                f"towpath_service_{requests_}"
                f'{{method="POST",route="/orders",status="{code}"}}'
            ]
            for code in codes
        ),
    }


def metrics_page(service: Service) -> str:
    """Return the text of the metrics page."""
    return requests.get(service.url + "/metrics", timeout=5).text


def test_a_chunked_body_that_grows_too_large_is_refused(service: Service):
    """
    A chunked body has no declared length, so it is refused while it is read.
    """
    endless = (b" " * 65_536 for _ in range(64))
    response = requests.post(
        service.url + "/orders",
        data=endless,
        headers={"Content-Type": "application/json"},
        timeout=10,
    )

    assert response.status_code == 413


def test_the_log_is_json_and_contains_no_secrets(service: Service):
    """
    Every record has a level and a time; neither the DSN nor a request body is logged.
    """
    service.post("/orders", {"note": "a secret"})
    records = service.records()
    whole = service.log.read_text(encoding="utf-8")

    assert all({"event", "level", "at"} <= set(record) for record in records)
    assert "postgresql:" not in whole
    assert "a secret" not in whole


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_service_exits_cleanly_and_leaves_no_process(
    service: Service, stop: int
):
    """
    The service exits with code 0 within its time limit, and its workers end, too.
    """
    processes = psutil.Process(service.process.pid).children(recursive=True)
    service.process.send_signal(stop)
    code = service.process.wait(STOP_TIMEOUT_S)
    _, alive = psutil.wait_procs(processes, timeout=STOP_TIMEOUT_S)

    assert (0, []) == (code, alive)


def test_a_killed_worker_is_replaced(service: Service):
    """
    The server starts a new worker, and the service accepts requests again.
    """
    worker = psutil.Process(service.process.pid).children()[0]
    worker.kill()
    worker.wait(STOP_TIMEOUT_S)
    service.wait_until_live()

    assert service.post("/customers", {"name": "A", "email": "a@b"}).status_code == 201


def test_a_command_line_without_a_database_is_refused():
    """
    The exit code is that of a usage error, and the message names the missing option.
    """
    done = subprocess.run(
        [sys.executable, "-m", "towpath.services.orders", "migrate"],
        env={},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (2, True) == (done.returncode, "--dsn" in done.stderr)
