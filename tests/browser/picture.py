"""
Takes the pictures of pages: ``python tests/browser/picture.py NAME PAGE FILE``.

``load`` is the picture of docs/load.md: locust's page is open at PAGE, with all three
sinks' addresses; the load is started from the page, and ends with the picture.
``storefront`` is that of docs/storefront.md: the storefront is open at PAGE, over the
whole shop; two products are ordered, and the order's page is taken.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.browser import Browser, browser, start_load
from support.waiting import until

SINKS = ("cache", "search", "warehouse")
READS = ("cache", "search")


def load(window: Browser, page: str) -> None:
    """Start the load, and wait until every sink has shown an order."""
    start_load(window, page, {"userCount": "20", "spawnRate": "5"})
    until(
        lambda: set(SINKS) <= set(window.text().split()),
        "the page shows every sink",
        timeout_s=240.0,
    )


def storefront(window: Browser, page: str) -> None:
    """Order two products, and wait until the saga is settled and was read."""
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


NAMES = {"load": load, "storefront": storefront}


def main(name: str, page: str, file: Path) -> None:
    """Bring a page to the state that its picture shows, and take the picture."""
    with browser() as window:
        NAMES[name](window, page)
        file.write_bytes(window.picture())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
