"""
Take a picture of a page: ``python tests/browser/picture.py NAME PAGE FILE``.

``load`` takes the picture for docs/load.md. Locust serves its page at PAGE, and has the
addresses of all three sinks; the load is started from the page and runs until the
picture is taken.

``storefront`` takes the picture for docs/storefront.md. The storefront of the whole
shop is served at PAGE; two products are ordered, and the order's page is shown.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.browser import Browser, browser, start_load
from support.waiting import until

SINKS = ("cache", "search", "warehouse")
READS = ("cache", "search")


def load(window: Browser, page: str) -> None:
    """Start the load, and wait until the page shows every sink."""
    start_load(window, page, {"userCount": "20", "spawnRate": "5"})
    until(
        lambda: set(SINKS) <= set(window.text().split()),
        "the page shows every sink",
        timeout_s=240.0,
    )


def storefront(window: Browser, page: str) -> None:
    """
    Order two products; wait until the saga is settled and both copies show its result.
    """
    window.emulate(height=860)
    window.open(page)
    for number in (3, 5):
        window.follow(f"li.card:nth-child({number}) button")
    window.follow("#basket-link")
    window.follow("#check-out")
    until(
        lambda: (
            "settled" in window.text()
            and window.text().count("completed, your write was visible") == len(READS)
        ),
        "the page shows the end of the saga",
    )


PICTURES = {"load": load, "storefront": storefront}


def main(name: str, page: str, file: Path) -> None:
    """Bring a page to the state that its picture shows, and take the picture."""
    with browser() as window:
        PICTURES[name](window, page)
        file.write_bytes(window.picture())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
