"""The load on all four services: sagas in its report, load shapes, and the checks."""

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support import databases
from support.locust_run import Locust
from support.orders_service import Service, serving
from support.rig import Rig
from support.saga import Saga
from support.waiting import CLOCK, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

HEADLESS = ("--headless", "--only-summary", "--load-progress", "progress.json")
# 6 arrivals per second for 2 s, 14 times as many for 1 s, and none for 3 s.
SHAPE = """
meaning = "A spike in six seconds."
points = [[0, 1], [2, 1], [2, 14], [3, 14], [3, 0], [6, 0]]
"""


class RunningShop(NamedTuple):
    """All services, and the orders service with its address."""

    saga: Saga
    orders: Service


@pytest.fixture(scope="module")
def shop(stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningShop]:
    """Provide the four services, with seeded products."""
    stack.up("postgres", "kafka")
    name = f"t_{uuid.uuid4().hex[:12]}"
    folder = tmp_path_factory.mktemp("shop")
    with databases.fresh_database(stack, name) as dsn:
        rig = Rig(dsn, stack.kafka, name, folder)
        rig.configure(rig.outbox)
        rig.init()
        saga = Saga(rig, {})
        saga.start()
        saga.run("inventory", "seed")
        with serving("towpath.services.orders", dsn, folder) as orders:
            yield RunningShop(saga, orders)
        saga.close()
        rig.close()


def _counts(shop: RunningShop) -> tuple[int, ...]:
    (row,) = shop.saga.rig.execute(
        "select count(*), count(payment_method), count(*) filter (where status ="
        " 'returned') from shop.orders"
    )
    return row


def test_the_report_has_the_outcomes_steps_and_compensations(
    shop: RunningShop, tmp_path: Path
):
    """
    Every paid order is watched, and the counts match the database.
    """
    before = _counts(shop)
    run = Locust(
        tmp_path,
        *(*HEADLESS, "--csv", "run", "--load-report", "report"),
        *("--host", shop.orders.url, "--load-rate", "8", "--load-customers", "2"),
        *("--load-return-share", "0", "--load-watch-share", "1"),
    )
    try:
        run.wait_for("returns", 2)
        code = run.stop()
    finally:
        run.kill()
    load, rows = run.progress()["load"], run.rows()
    seen = load["saga"]
    text = (run.folder / "report" / "report.md").read_text(encoding="utf-8")
    completed = seen["outcomes"]["completed"]
    now = _counts(shop)

    assert 0 == code, run.text
    assert [load[n] for n in ("checkouts", "payments", "returns")] == [
        later - old for later, old in zip(now, before, strict=True)
    ]
    assert completed["count"] == int(rows["SAGA", "completed"]["Request Count"])
    assert 0 < seen["from_checkout"]["p50_ms"] <= seen["from_checkout"]["p99_ms"]
    # The step stock_reserved is not compared: it may precede a separate payment.
    assert seen["steps"]["payment_captured"]["count"] >= completed["count"]
    assert seen["compensations"]["stock_released"] > 0
    assert seen["watched"] == seen["not_settled"] + sum(
        one["count"] for one in seen["outcomes"].values()
    )
    assert f"| completed | {completed['count']:,} |" in text
    assert "| compensation | count |" in text
    assert "| stock_released |" in text.split("| compensation | count |")[1]
    _cancel_open_orders(shop)
    shop.saga.wait_until_all_settled()
    assert [] == shop.saga.findings()


def _cancel_open_orders(shop: RunningShop) -> None:
    query = "select id from shop.orders where status = 'placed'"
    for (number,) in shop.saga.rig.execute(query):
        shop.saga.post(f"/orders/{number}/cancel", {})


def _check_stores(shop: RunningShop, within_s: float) -> dict[str, list[str]]:
    config = {"dsn": shop.saga.rig.dsn, "targets": {}, "within_s": within_s}
    done = subprocess.run(
        [sys.executable, "-m", "towpath.loadtests.load.check"],
        input=json.dumps(config) + "\nnow\n",
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_run_ends_with_a_check_of_the_shop(shop: RunningShop, tmp_path: Path):
    """
    Unpaid orders are reported, and locust exits with 1; once settled, none is reported.

    A payment whose amount was changed by hand is a finding, too.
    """
    _cancel_open_orders(shop)
    run = Locust(
        tmp_path,
        *(*HEADLESS, "--load-report", "report", "--host", shop.orders.url),
        *("--load-rate", "8", "--load-customers", "2", "--load-return-share", "0"),
        *("--load-dsn", shop.saga.rig.dsn, "--load-settle-for", "1"),
    )
    try:
        until(lambda: _unpaid_orders(shop) > 0, "an order remains unpaid")
        until(lambda: _captured(shop) > 0, "a payment is captured")
        code = run.stop()
    finally:
        run.kill()
    text = (run.folder / "report" / "report.md").read_text(encoding="utf-8")
    _cancel_open_orders(shop)
    shop.saga.wait_until_all_settled()
    later = _check_stores(shop, 1.0)
    _add_to_payments(shop, 1)
    altered = _check_stores(shop, 1.0)
    _add_to_payments(shop, -1)

    assert 1 == code, run.text
    assert "load invariant violated: database:" in run.text
    assert "orders are not final" in text.split("## Invariants")[1]
    assert {"database": []} == later
    assert ["database"] == list(altered)
    assert "payments differ from completed orders" in altered["database"][0]


def _add_to_payments(shop: RunningShop, amount: int) -> None:
    add = "update payments.payments set amount = amount + %s where status = 'captured'"
    shop.saga.rig.execute(add, amount)


def _unpaid_orders(shop: RunningShop) -> int:
    """Count the orders that have been open for longer than customers take to pay."""
    query = (
        "select count(*) from shop.orders where status = 'placed'"
        " and placed_at < now() - interval '3 s'"
    )
    return int(shop.saga.rig.one(query))


def _captured(shop: RunningShop) -> int:
    query = "select count(*) from payments.payments where status = 'captured'"
    return int(shop.saga.rig.one(query))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("dsn", "code", "sentence"),
    [
        ("", 1, "not checked: set --load-dsn to the shop's database, or to none"),
        ("none", 0, "not checked: --load-dsn is none"),
    ],
)
def test_a_run_that_cannot_be_checked_fails_unless_the_check_is_off(
    shop: RunningShop, tmp_path: Path, dsn: str, code: int, sentence: str
):
    """
    Both the log and the report state that nothing was checked, and name the option.
    """
    run = Locust(
        tmp_path,
        *(*HEADLESS, "--load-report", "report", "--host", shop.orders.url),
        *("--load-rate", "8", "--load-dsn", dsn, "--load-watch-share", "0"),
    )
    try:
        run.wait_for("checkouts", 1)
        ended = run.stop()
    finally:
        run.kill()
    text = (run.folder / "report" / "report.md").read_text(encoding="utf-8")
    _cancel_open_orders(shop)

    assert code == ended, run.text
    assert 1 == run.text.count(sentence)
    assert "were not checked: `--load-dsn` names no database" in text


def test_a_run_does_not_start_if_its_database_is_unreachable(
    shop: RunningShop, tmp_path: Path
):
    """
    One error is reported before the first request.
    """
    run = Locust(
        tmp_path,
        *(*HEADLESS, "--host", shop.orders.url, "--load-rate", "8"),
        *("--load-dsn", "postgresql://nobody@127.0.0.1:1/none"),
    )
    try:
        code = run.end()
    finally:
        run.kill()

    assert 3 == code, run.text
    assert "--load-dsn: the shop's database cannot be read" in run.text
    assert {} == run.progress()


@pytest.mark.soak
def test_a_shape_sets_the_rate_of_all_workers_and_ends_the_run(
    shop: RunningShop, tmp_path: Path
):
    """
    There are 12 arrivals before the spike and 84 during it.

    Only the master has the file.
    """
    (tmp_path / "spike.toml").write_text(SHAPE, encoding="utf-8")
    run = Locust(
        tmp_path,
        *(*HEADLESS, "--csv", "run", "--load-report", "report"),
        *("--host", shop.orders.url, "--processes", "2", "-u", "2", "-r", "2"),
        *("--load-rate", "6", "--load-shape", "spike.toml", "--load-customers", "1"),
        *("--load-return-share", "0", "--tags", "checkout"),
    )
    try:
        code = run.end()
    finally:
        run.kill()
    load = run.progress()["load"]
    text = (run.folder / "report" / "report.md").read_text(encoding="utf-8")

    assert 0 == code, run.text
    assert (True, 0) == (load["finished"], load["not_started"])
    # Each worker's stream of arrivals starts at its own phase.
    assert 94 <= load["checkouts"] <= 98
    assert "in the shape spike.toml" in text


@pytest.mark.soak
def test_latency_is_measured_from_the_due_time(shop: RunningShop, tmp_path: Path):
    """
    Thirty arrivals become due while locust is suspended.

    Their latency includes the wait.
    """
    run = Locust(
        tmp_path,
        *(*HEADLESS, "--csv", "run", "--load-report", "none", "--tags", "checkout"),
        *("--host", shop.orders.url, "--load-rate", "10", "--load-customers", "1"),
        *("--load-return-share", "0"),
    )
    try:
        run.wait_for("checkouts", 5)
        with run.suspended():
            began_s = CLOCK.monotonic_s()
            until(lambda: CLOCK.monotonic_s() > began_s + 3, "thirty arrivals are due")
        run.wait_for("checkouts", run.progress()["load"]["checkouts"] + 30)
        code = run.stop()
    finally:
        run.kill()
    rows = run.rows()

    assert 0 == code, run.text
    assert int(rows["ARRIVAL", "late"]["Request Count"]) >= 20
    # If the wait were left out, only requests in flight would take this long.
    assert float(rows["POST", "checkout"]["90%"]) >= 1_000
