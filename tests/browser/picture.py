"""
Takes the picture of docs/load.md: ``python tests/browser/picture.py PAGE FILE``.

Locust's page is open at PAGE, with all three sinks' addresses; the load is started from
the page, and ends with the picture.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.browser import browser, start_load
from support.waiting import until

SINKS = ("cache", "search", "warehouse")


def main(page: str, file: Path) -> None:
    """Start the load, wait until every sink has shown an order, take the picture."""
    with (
        tempfile.TemporaryDirectory() as folder,
        browser(Path(folder)) as window,
    ):
        start_load(window, page, {"userCount": "20", "spawnRate": "5"})
        until(
            lambda: set(SINKS) <= set(window.text().split()),
            "the page shows every sink",
            timeout_s=240.0,
        )
        file.write_bytes(window.picture())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
