"""What runs have found so far: their figures, by case and system, and what differs."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from confluent_kafka import KafkaException

from towpath.loadtests.bench.errors import BenchError
from towpath.loadtests.bench.figures import Figures
from towpath.loadtests.bench.machine import machine
from towpath.loadtests.bench.plan import Bench


class Book:
    """The figures and findings of one benchmark."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._cases: dict[str, dict[str, list[Figures]]] = {}
        self._findings: list[str] = []

    @property
    def findings(self) -> tuple[str, ...]:
        """What is wrong, by run."""
        return tuple(self._findings)

    def note(self, case: str, system: str, figures: Figures) -> None:
        """Keep a run's figures."""
        systems = self._cases.setdefault(case, defaultdict(list))
        systems[system].append(figures)

    def judge(self, run: str, checked: int, findings: Sequence[str]) -> None:
        """Keep what is wrong with a run, or say how much of it was checked."""
        if findings:
            self._findings.append(f"{run}: {', '.join(findings)}")
            self._bench.screen.say(f"[red]{self._findings[-1]}[/red]")
        else:
            self._bench.screen.say(f"{run}: {checked:,} events verified")

    def rounds(self) -> Iterator[tuple[str, dict[str, tuple[Figures, ...]]]]:
        """Yield the figures of every round, by system, case by case."""
        for name in self._cases:
            yield name, self.of_case(name)

    def of_case(self, name: str) -> dict[str, tuple[Figures, ...]]:
        """Return the figures of every round of one case, by system."""
        return {n: tuple(found) for n, found in self._cases.get(name, {}).items()}

    def facts(self) -> dict[str, Any]:
        """Return what every result tells: how much was asked for, and on what."""
        options = self._bench.options
        return {"rows": options.rows, "rounds": options.rounds, "machine": machine()}


@contextmanager
def translated() -> Iterator[None]:
    """Name what a driver raises when its server is gone."""
    try:
        yield
    except (psycopg.Error, KafkaException, TimeoutError) as error:
        message = f"a server of the benchmark does not answer: {error}".strip()
        raise BenchError(message) from error
