"""Sessions that make random changes while a test runs."""

import random
import threading
from typing import Self

import psycopg


class RandomWriters:
    """
    Sessions that change a source until the end of a ``with`` block.

    Attributes:
        writes: The number of changes so far.
        pause_s: The pause of each session before each change.
    """

    pause_s = 0.0

    def __init__(
        self, dsn: str, highest: int, count: int = 3, pause_s: float | None = None
    ) -> None:
        self._dsn = dsn
        if pause_s is not None:
            self.pause_s = pause_s
        self.highest = highest
        self.writes = 0
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(seed,)) for seed in range(count)
        ]

    def change(self, connection: psycopg.Connection, rng: random.Random) -> None:
        """Change a row whose key is not above ``highest``."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311 - not a secret
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stop.wait(self.pause_s):
                self.change(connection, rng)
                self.writes += 1
