"""
Locust's page in a real browser: make browser-test.
"""

from pathlib import Path

import pytest

from support.browser import browser, start_load
from support.load_shop import load_shop
from support.locust_run import Locust
from support.waiting import until
from towpath.deploy.local import ports

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


def test_the_page_starts_the_load_and_shows_lag_among_the_requests(
    stack, tmp_path: Path
):
    """
    A user fills in two fields, presses Start, and sees how far the cache lags.
    """
    port = str(ports.any_free())
    page = f"http://127.0.0.1:{port}"
    with load_shop(stack, tmp_path) as shop:
        options = ("--host", shop.service.url, "--web-port", port)
        run = Locust(tmp_path / "run", *options, **shop.lag())
        try:
            with browser() as window:
                start_load(window, page, {"userCount": "5", "spawnRate": "5"})
                until(lambda: "LAG" in window.text(), "the page shows lag")
                text = window.text()
        finally:
            run.kill()

    assert all(name in text for name in ("checkout (sample)", "cache", "register"))
