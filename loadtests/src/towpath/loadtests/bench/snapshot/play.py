"""All systems, both loads, round by round; what ours gets wrong ends the figures."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from towpath.loadtests.bench.book import Book, translated
from towpath.loadtests.bench.plan import RELAY, Bench, in_turn
from towpath.loadtests.bench.result import Result
from towpath.loadtests.bench.snapshot import fill, table
from towpath.loadtests.bench.snapshot.plan import COPY, FillRun, Load, systems
from towpath.loadtests.bench.snapshot.result import FillCase
from towpath.loadtests.bench.snapshot.source import copied, original

_ORIGINAL: Final = "bench_original"


def measure(bench: Bench, loads: Sequence[str] = tuple(Load)) -> Result[FillCase]:
    """
    Have every system read the table, under updates and on a quiet server.

    Args:
        bench: What all runs share.
        loads: Only these loads.

    Raises:
        BenchError: A system or a part was not there any more, or not done in time.
    """
    book = Book(bench)
    options = bench.options
    wanted = systems(with_debezium=options.with_debezium)
    with translated(), _original(bench):
        bench.broker.date_by_append()
        for load in map(Load, loads):
            for number in range(options.rounds):
                for system in in_turn(wanted, number):
                    _run(bench, book, (system, load, number))
            if not book.findings:
                case = FillCase(loads={load: book.of_case(load)})
                bench.screen.show(table.draw_load(case, load))
    return _result(book)


def _run(bench: Bench, book: Book, what: tuple[str, Load, int]) -> None:
    system, load, number = what
    name = f"bench_fill_{load}_{system}_{number}"
    with copied(bench.place, name, _ORIGINAL, bench.clock) as source:
        run = FillRun(system=system, name=name, source=source, load=load)
        source.settle()
        if system == COPY:
            book.note(load, system, fill.copy(bench, run, source))
            return
        with _cleared(bench, run):
            figures, verdict = fill.Fill(bench, run, source).measure()
    book.note(load, system, figures)
    judged = verdict if system == RELAY else verdict.forgiven
    book.judge(name, verdict.rows, judged.findings())


@contextmanager
def _original(bench: Bench) -> Iterator[None]:
    """Keep a database with the table for the block; nobody is connected to it."""
    rows = bench.options.rows
    with original(bench.place, _ORIGINAL, bench.clock) as source:
        source.fill_items(rows, bench.screen.begin("writing the table", rows))
        source.close()
        yield


@contextmanager
def _cleared(bench: Bench, run: FillRun) -> Iterator[None]:
    """Leave no process and no topic of the run behind; the slots go with its source."""
    try:
        yield
    finally:
        bench.place.launcher.stop(run.name)
    bench.broker.delete_topics(run.name)


def _result(book: Book) -> Result[FillCase]:
    loads = {Load(name): found for name, found in book.rounds()}
    return Result(
        findings=book.findings, cases=(FillCase(loads=loads),), **book.facts()
    )
