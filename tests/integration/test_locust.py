"""
The locustfile as people run it: with a real orders service, a real Redis, and workers.

The sink is a thread that copies orders from Postgres into Redis.
"""

import itertools
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests

from support.load_shop import Shop, load_shop
from support.locust_run import Locust
from support.waiting import until
from towpath.deploy.local import ports

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

Begin = Callable[..., Locust]


@pytest.fixture(scope="module")
def shop(stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Provide one shop for all tests in this file; its cache follows its orders."""
    with load_shop(stack, tmp_path_factory.mktemp("shop")) as found:
        yield found


@pytest.fixture
def begin(shop: Shop, tmp_path: Path) -> Iterator[Begin]:
    """Provide a function that runs locust on the shop; kill all runs at the end."""
    runs: list[Locust] = []
    numbers = itertools.count()

    def start(*args: str, host: str | None = shop.service.url, **env: str) -> Locust:
        address = () if host is None else ("--host", host)
        run = Locust(tmp_path / str(next(numbers)), *address, *args, **env)
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.kill()


HEADLESS = ("--headless", "--only-summary", "--load-progress", "progress.json")
FILES = ("--csv", "run", "--html", "run.html", "--load-report", "report")
NO_REPORT = ("--load-report", "none")


def test_a_master_and_two_workers_count_everything_once(begin: Begin, shop: Shop):
    """
    The CSV, HTML and load reports count all orders in the database and all samples.
    """
    before, _ = shop.orders()
    port = str(ports.any_free())
    master = begin(
        *("--master", "--master-bind-port", port, "--expect-workers", "2"),
        *(*HEADLESS, *FILES, "-u", "4", "-r", "4", "-t", "6"),
        *("--load-rate", "20", "--load-return-share", "0", "--load-customers", "3"),
        **shop.lag(),
    )
    workers = [
        begin("--worker", "--master-port", port, host=None),
        begin("--worker", "--master-port", port, host=None),
    ]
    assert [0, 0, 0] == [one.end() for one in (master, *workers)], master.text
    rows = master.rows()
    counts = {
        name: int(row["Request Count"])
        for (kind, name), row in rows.items()
        if kind in {"POST", "LAG"}
    }
    progress = master.progress()
    text = (master.folder / "report" / "report.md").read_text(encoding="utf-8")
    html = (master.folder / "run.html").read_text(encoding="utf-8")
    seconds = progress["load"]["elapsed_s"]

    assert shop.orders()[0] - before == counts["checkout"] + counts["checkout (sample)"]
    assert (6, True) == (counts["register"], counts["cache"] > 0)
    assert counts["cache"] == counts["checkout (sample)"]
    assert 0 < counts["checkout"] <= 20 * seconds + 4
    assert (counts["checkout"], counts["cache"], 0, True, True) == (
        progress["load"]["checkouts"],
        progress["lag"]["sinks"]["cache"]["latency"]["count"],
        progress["lag"]["sinks"]["cache"]["lost"],
        progress["load"]["finished"],
        progress["lag"]["finished"],
    )
    assert "open loop, 20 arrivals per second, 4 users, master and 2 workers" in text
    assert f"| POST checkout | {counts['checkout']:,} | 0 |" in text
    assert f"| cache | {counts['cache']:,} | 0 |" in text
    assert '"method": "LAG", "name": "cache"' in html
    assert ["lag.svg", "latency.svg", "rate.svg"] == sorted(
        path.name
        for path in (master.folder / "report").glob("*.svg")
        if path.read_text(encoding="utf-8").startswith("<svg")
    )


@pytest.mark.soak
def test_arrivals_do_not_wait_for_an_unresponsive_shop(begin: Begin, shop: Shop):
    """
    Once five requests are outstanding, further arrivals are counted as not started.
    """
    run = begin(
        *(*HEADLESS, *NO_REPORT, "--csv", "run", "--load-rate", "50"),
        *("--load-max-outstanding", "5", "--load-customers", "1"),
    )
    run.wait_for("checkouts", 5)
    service = psutil.Process(shop.service.process.pid)
    processes = [service, *service.children(recursive=True)]
    for one in processes:
        one.suspend()
    try:
        run.wait_for("not_started", 30)
        checkouts = run.progress()["load"]["checkouts"]
        run.wait_for("not_started", 80)
        later = run.progress()["load"]["checkouts"]
    finally:
        for one in processes:
            one.resume()
    run.wait_for("checkouts", checkouts + 10)
    code = run.stop()
    rows = run.rows()
    not_started = rows["ARRIVAL", "not started"]

    assert 1 == code
    # Up to five requests may have completed just before the shop was suspended.
    assert later - checkouts <= 5
    assert not_started["Request Count"] == not_started["Failure Count"]
    assert int(not_started["Failure Count"]) >= 80
    assert rows["POST", "checkout"]["Failure Count"] == "0"


def test_an_order_that_no_reader_finds_is_a_failure(begin: Begin, shop: Shop):
    """
    Both locust's statistics and the report count it as lost; the exit code is 1.
    """
    env = shop.lag(CACHE_KEY="nobody:writes:{}", LAG_LOST_AFTER="1")
    run = begin(*HEADLESS, *FILES, "-u", "1", **env)
    until(
        lambda: _lost(run) > 2,
        "samples are lost",
    )
    code = run.stop()
    row = run.rows()["LAG", "cache"]
    text = (run.folder / "report" / "report.md").read_text(encoding="utf-8")
    lost = _lost(run)

    assert (1, str(lost), str(lost)) == (
        code,
        row["Request Count"],
        row["Failure Count"],
    )
    assert run.progress()["lag"]["placed"] == lost
    assert f"| cache | 0 | {lost} | - | - | - |" in text
    assert f"LAG cache: not readable in time | {lost} |" in text


def _lost(run: Locust) -> int:
    sinks = run.progress().get("lag", {}).get("sinks", {})
    return int(sinks.get("cache", {}).get("lost", 0))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("tag", "counted", "names"),
    [
        ("pay", "payments", {"register", "checkout", "pay"}),
        ("return", "payments", {"checkout", "return: pay", "return: cancel"}),
    ],
)
def test_tags_choose_the_tasks_of_users(begin: Begin, shop: Shop, tag, counted, names):
    """
    Paying users leave no order open; returning users pay for or cancel theirs.
    """
    before = shop.orders()
    mode = ("-u", "2") if tag == "pay" else ("--load-rate", "20")
    run = begin(
        *(*HEADLESS, *NO_REPORT, "--csv", "run", "--tags", tag, *mode),
        *("--load-think", "0.1", "--load-customers", "1"),
    )
    # One order in five is paid for by a separate request.
    run.wait_for(counted, 60)
    assert run.stop() == 0, run.text
    orders, paid = (now - old for now, old in zip(shop.orders(), before, strict=True))
    load = run.progress()["load"]

    assert (orders, paid) == (load["checkouts"], load["payments"])
    assert orders == load["payments"] + load["cancellations"]
    assert names <= {name for kind, name in run.rows() if kind == "POST"} | {"register"}


@pytest.mark.soak
def test_customers_return_to_any_order_of_the_shop(begin: Begin):
    """
    Each customer views an order first; some orders are then canceled.
    """
    first = begin(*HEADLESS, *NO_REPORT, "--exclude-tags", "pay", "-u", "3")
    first.wait_for("checkouts", 5)
    assert first.stop() == 0
    run = begin(
        *(*HEADLESS, *NO_REPORT, "--csv", "run", "--tags", "return"),
        *("--load-return-to", "any", "--load-think", "0.1", "-u", "2"),
    )
    run.wait_for("cancellations", 5)

    assert run.stop() == 0, run.text
    assert ("GET", "return: look") in run.rows()


def test_sixty_percent_of_shoppers_pay_and_fifteen_percent_cancel(begin: Begin):
    """
    The other 25 percent only check out.
    """
    run = begin("--show-task-ratio-json")
    run.end()
    shopper = run.text[run.text.index('"Shopper"') :]

    assert '"check_out": {' in shopper
    assert (
        0.25,
        0.60,
        0.15,
    ) == tuple(
        float(shopper.split(f'"{task}"')[1].split('"ratio":')[1].split("\n")[0])
        for task in ("check_out", "check_out_and_pay", "check_out_and_cancel")
    )


NOWHERE = "127.0.0.1:1"
MISTAKES = [
    ((), None, 2, "--host is missing"),
    ((), "ftp://shop", 2, "is not an address such as http://"),
    ((), f"http://{NOWHERE}", 3, "the orders service does not answer at http://"),
    (("--load-cache-url", f"redis://{NOWHERE}/0"), "", 3, "the cache cannot be read"),
    (("--load-search-url", f"http://{NOWHERE}"), "", 3, "the search cannot be read"),
    (
        ("--load-rate", "fast"),
        "",
        2,
        "argument --load-rate: 'fast' is not a valid number",
    ),
    (("--tags", "buy"), "", 2, "known tags: cancel, checkout, pay, return"),
    (("OpenLoop",), "", 2, "OpenLoop needs a rate: set --load-rate"),
    (("--load-customers-file", "empty"), "", 2, "empty contains no customer ids"),
    (("--load-customers-file", "strangers"), "", 2, "has no customer"),
]


@pytest.mark.soak
def test_a_mistake_gives_one_error_with_its_remedy(begin: Begin, tmp_path: Path, shop):
    """
    No order is placed, and no stack trace is printed.
    """
    before = shop.orders()
    (tmp_path / "empty").touch()
    (tmp_path / "strangers").write_text(f"{uuid.uuid4()}\n", encoding="utf-8")

    def try_out(number: int) -> tuple[int, bool, bool]:
        given, host, _, reason = MISTAKES[number]
        args = [
            str(tmp_path / arg) if arg in {"empty", "strangers"} else arg
            for arg in given
        ]
        address = shop.service.url if host == "" else host
        run = begin("--headless", *args, host=address)
        code = run.end()
        return code, reason in run.text, "Traceback" in run.text

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(try_out, range(len(MISTAKES))))

    assert [(code, True, False) for _, _, code, _ in MISTAKES] == found
    assert before == shop.orders()


@pytest.fixture
def page(begin: Begin, shop: Shop) -> tuple[Locust, str]:
    """Provide a locust process with a web page, and the page's address."""
    port = ports.any_free()
    run = begin("--web-port", str(port), *NO_REPORT, host=None, **shop.lag())
    address = f"http://127.0.0.1:{port}"
    until(lambda: _responds(f"{address}/"), "the page is served")
    return run, address


def test_the_page_starts_a_valid_run_and_reports_invalid_fields(page, shop: Shop):
    """
    An invalid field starts no run; the page of a valid run lists lag as a request.
    """
    run, address = page
    before = shop.orders()
    wrong = [
        _swarm(address, shop, **changed)
        for changed in (
            {"host": f"http://{NOWHERE}"},
            {"load_rate": "-1"},
            {"load_cache_url": f"redis://{NOWHERE}/0"},
        )
    ]
    placed = shop.orders()
    right = _swarm(address, shop, load_rate="20", load_cache_url=shop.redis_url)
    until(lambda: _requests(address, "LAG", "cache") > 3, "the page shows lag")
    requests.post(f"{address}/stop", timeout=80)

    assert [False, False, False, True] == [
        response["success"] for response in (*wrong, right)
    ]
    assert all(
        reason in response["message"]
        for response, reason in zip(
            wrong,
            ("does not answer", "must be 0 or more", "the cache cannot be read"),
            strict=True,
        )
    )
    assert before == placed < shop.orders()
    assert run.stop() == 0, run.text


@pytest.mark.soak
def test_a_new_start_does_not_wait_for_samples_of_the_previous_run(page, shop: Shop):
    """
    The page's Stop waits for the last samples; a new Start ends this wait.
    """
    run, address = page
    _swarm(address, shop, load_cache_key="nobody:writes:{}")
    until(
        lambda: _requests(address, "POST", "checkout (sample)") > 3,
        "some samples are placed",
    )
    with ThreadPoolExecutor(1) as threads:
        stop = threads.submit(requests.post, f"{address}/stop", timeout=50)
        until(lambda: _state(address) == "stopped", "the users have stopped")
        again = _swarm(address, shop, load_cache_key=shop.key)
        ended = stop.result().ok
    until(lambda: _requests(address, "LAG", "cache") > 3, "the page shows lag")

    assert (True, True) == (again["success"], ended)
    assert run.stop() == 0, run.text


def _responds(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except requests.ConnectionError:
        return False


def _swarm(page: str, shop: Shop, **changed: str) -> dict[str, object]:
    form = {"user_count": "2", "spawn_rate": "2", "host": shop.service.url}
    response = requests.post(f"{page}/swarm", data=form | changed, timeout=30)
    found: dict[str, object] = response.json()
    return found


def _state(page: str) -> object:
    return requests.get(f"{page}/stats/requests", timeout=10).json()["state"]


def _requests(page: str, kind: str, name: str) -> int:
    stats = requests.get(f"{page}/stats/requests", timeout=10).json()["stats"]
    return sum(
        one["num_requests"]
        for one in stats
        if (one["method"], one["name"]) == (kind, name)
    )
