"""Run many planted defects, several at a time, and determine the result of each."""

import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from typing import Final, NamedTuple

from mutants.catalogue import Mutant
from mutants.imports import ImportGraph
from mutants.runner import Outcome, Run

CAUGHT: Final = "caught"
# The number of tests in each successive fork: the first catches nearly every defect.
_BATCHES: Final = (4, 12, 40, 400)
# The number of test functions that one fork runs without a defect in its time limit.
_PROVEN_AT_ONCE: Final = 50
_NO_TEST_FAILED: Final = {0, 5}
_SHOWN_LINES: Final = 25


class Result(NamedTuple):
    """
    The result of one defect.

    Attributes:
        verdict: ``CAUGHT``, or another outcome.
        by: The test that caught it.
        seconds: The duration.
        text: The end of pytest's output, if the run hung or broke.
    """

    mutant: Mutant
    verdict: str
    by: str = ""
    seconds: float = 0.0
    text: str = ""


class _Job:
    """One defect, and the batches of tests that are still to run."""

    def __init__(self, mutant: Mutant, tests: Sequence[str]) -> None:
        self.mutant = mutant
        self._batches = _batches(tests)
        self._began_s = time.monotonic()

    def start(self) -> Run | None:
        """Start the next batch of tests, if there is one."""
        tests = next(self._batches, None)
        if tests is None:
            return None
        return Run(self.mutant, tests, is_real=self.mutant.real)

    def result(self, verdict: str, by: str = "", text: str = "") -> Result:
        """Return the result of the defect."""
        seconds = time.monotonic() - self._began_s
        return Result(self.mutant, verdict, by, seconds, text)


class Campaign:
    """Runs defects, a fixed number at a time."""

    def __init__(self, mutants: Sequence[Mutant], workers: int) -> None:
        self._workers = workers
        self._todo = list(reversed(mutants))
        self._running: dict[int, tuple[_Job, Run]] = {}
        self._graph = ImportGraph()

    def results(self) -> Iterator[Result]:
        """Yield the result of each defect when its run ends."""
        try:
            while self._todo or self._running:
                while self._todo and len(self._running) < self._workers:
                    mutant = self._todo.pop()
                    tests = mutant.tests or self._graph.tests_of(mutant.file)
                    yield from self._start_next(_Job(mutant, tests))
                yield from self._ended()
        finally:
            for _, run in self._running.values():
                run.end()

    def _ended(self) -> Iterator[Result]:
        """Wait briefly, and yield the results of runs that have ended."""
        ready = {int(each) for each in wait([*self._running], timeout=1.0)}
        late = {each for each, (_, run) in self._running.items() if run.is_late}
        for sentinel in ready | late:
            job, run = self._running.pop(sentinel)
            outcome = run.end()
            if outcome.code in _NO_TEST_FAILED:
                yield from self._start_next(job)
            elif outcome.is_caught:
                yield job.result(CAUGHT, outcome.failed[0])
            else:
                verdict = "hangs" if sentinel in late else "does not run"
                yield job.result(verdict, text=_end_of(outcome))

    def _start_next(self, job: _Job) -> Iterator[Result]:
        run = job.start()
        if run is None:
            yield job.result("survived")
        else:
            self._running[run.sentinel] = job, run


def failing(node_ids: Sequence[str], *, is_real: bool) -> set[str]:
    """Run tests without a defect; return those that fail, or whose run breaks."""
    functions = sorted({_function(each) for each in node_ids})
    failed: set[str] = set()
    for at in range(0, len(functions), _PROVEN_AT_ONCE):
        failed |= _failing(functions[at : at + _PROVEN_AT_ONCE], is_real=is_real)
    return {each for each in node_ids if _function(each) in failed}


def _failing(functions: Sequence[str], *, is_real: bool) -> set[str]:
    """Run test functions in one fork; return those that fail, or all if it breaks."""
    run = Run(None, functions, is_real=is_real)
    try:
        while not run.is_late and not wait([run.sentinel], timeout=1.0):
            pass
    finally:
        outcome = run.end()
    if outcome.code == 0:
        return set()
    return {_function(each) for each in outcome.failed} or set(functions)


def _function(node_id: str) -> str:
    return node_id.partition("[")[0]


def _batches(tests: Sequence[str]) -> Iterator[Sequence[str]]:
    at = 0
    for count in _BATCHES:
        if at < len(tests):
            yield tests[at : at + count]
        at += count


def _end_of(outcome: Outcome) -> str:
    return "\n".join(outcome.text.splitlines()[-_SHOWN_LINES:])
