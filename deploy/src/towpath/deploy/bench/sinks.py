"""
The benchmark of sinks: each case upon a stack of its own, with empty targets.

What is found in one case ends the figures of both.
"""

import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console

from towpath.deploy.bench import checkout
from towpath.deploy.bench.play import FOLDERS, bench_upon, results, tell
from towpath.deploy.bench.wishes import Wishes
from towpath.deploy.demo.screen import PlainScreen
from towpath.deploy.local.stack import NAMES, Stack
from towpath.deploy.own_stack import own_stack, prepare
from towpath.loadtests.bench.machine import machine
from towpath.loadtests.bench.plan import Options
from towpath.loadtests.bench.result import Result
from towpath.loadtests.bench.screen import open_screen
from towpath.loadtests.bench.sinks import catch_up
from towpath.loadtests.bench.sinks.plan import (
    CACHE,
    CHECKOUT,
    SEARCH,
    Targets,
)
from towpath.loadtests.bench.sinks.result import SinkCase
from towpath.loadtests.bench.sinks.table import draw, draw_case

_MERGE: Final = (sys.executable, "-m", "towpath.deploy.bench.merge")


def play(wishes: Wishes, *, keep: bool, as_json: bool) -> int:
    """
    Carry the cases out and print what was found; return 0 if all was verified, else 1.

    Raises:
        TowpathError: It could not be carried out to its end.
        KeyboardInterrupt: It was interrupted.
    """
    news = Console(stderr=True)
    shown = news if as_json else results()
    prepare(FOLDERS, news)
    cases: list[SinkCase] = []
    findings: list[str] = []
    for case in wishes.cases:
        with own_stack(FOLDERS, news, keep=keep, parts=NAMES) as stack:
            measured, found = _case(case, wishes, stack, news)
        cases.append(measured)
        findings += found
        if not findings:
            shown.print(draw_case(measured))
    result: Result[SinkCase] = Result(
        rows=wishes.rows,
        rounds=1,
        machine=machine(),
        cases=tuple(cases),
        findings=tuple(findings),
    )
    return tell(result, None if as_json else draw(result))


def _case(
    case: str, wishes: Wishes, stack: Stack, news: Console
) -> tuple[SinkCase, Sequence[str]]:
    if case == CHECKOUT:
        return checkout.measure(stack, wishes, PlainScreen(news))
    with open_screen(news, news) as screen:
        bench = bench_upon(stack, Options(rows=wishes.rows, rounds=1), screen)
        return catch_up.measure(bench, targets(stack), wishes.sinks)


def targets(stack: Stack) -> Targets:
    """Say where a stack's targets are."""
    addresses = stack.addresses()
    pids = {part.name: part.pid for part in stack.status() if part.pid is not None}
    return Targets(
        redis_url=addresses.redis_url,
        opensearch_url=addresses.opensearch_url,
        catalog_dsn=addresses.dsn("warehouse"),
        pids={CACHE: pids["redis"], SEARCH: pids["opensearch"]},
        merge=_MERGE,
    )
