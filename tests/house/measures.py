"""
The measures: their goals and ceilings from ``measures.toml``, and their current values.

A measure without a current value, such as the duration of a run that never happened, is
shown, but no ceiling applies to it.
"""

import math
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from house import paths, source
from house.hops import hops_of, within
from house.source import Module, modules_below
from support import glossary
from support.last_run import last_run
from support.pages import README, ROOT

TABLE: Final = Path(__file__).with_name("measures.toml")
_CEILING: Final = re.compile(r"(?<=ceiling = )\d+")


class Measure(NamedTuple):
    """
    One line of the table.

    Attributes:
        name: Its key in the table.
        title: Its description in the table.
        before: The value when the goals were set, as text; empty if it is unknown.
        goal: The highest desired value, or ``None`` if there is no goal.
        ceiling: The highest value that a test accepts, or ``None`` if none checks it.
    """

    name: str
    title: str
    before: str
    goal: int | None
    ceiling: int | None

    def is_reached(self, now: float | None) -> bool | None:
        """Return whether a value reaches the goal; ``None`` if either is missing."""
        return None if now is None or self.goal is None else now <= self.goal

    def lowered(self, now: float) -> int:
        """Return the lowest ceiling that admits both a value and the goal."""
        return max(math.ceil(now), self.goal or 0)


def measures(text: str) -> list[Measure]:
    """Read the table."""
    return [
        Measure(
            name,
            line["title"],
            str(line["before"]),
            line.get("goal"),
            line.get("ceiling"),
        )
        for section in tomllib.loads(text).values()
        for name, line in section.items()
    ]


def with_ceilings(text: str, values: Mapping[str, float | None]) -> str:
    """Return the table with each ceiling as low as possible; none rises."""
    lines = text.splitlines(keepends=True)
    for measure in measures(text):
        now = values[measure.name]
        if measure.ceiling is None or now is None:
            continue
        lowest = str(min(measure.ceiling, measure.lowered(now)))
        [at] = [n for n, one in enumerate(lines) if one.startswith(f"{measure.name} =")]
        lines[at] = _CEILING.sub(lowest, lines[at])
    return "".join(lines)


@cache
def values() -> Mapping[str, float | None]:
    """Compute every measure; the keys are the names in the table."""
    return {**_source_values(), **_path_values(), **_sink_values(), **_test_values()}


@cache
def _modules() -> tuple[Module, ...]:
    return tuple(modules_below(ROOT, "*/src/**/*.py"))


def _source_values() -> dict[str, float]:
    modules = _modules()
    return {
        "source_files": len(modules),
        "small_files": sum(map(source.is_small, modules)),
        "relay_top": len(source.top_level_files(modules, "relay")),
        "sinks_top": len(source.top_level_files(modules, "sinks")),
        "repeated_classes": len(source.repeated_classes(modules)),
        "tell_functions": source.functions_named(modules, "_tell"),
        "clause_sentences": sum(len(source.clause_sentences(m)) for m in modules),
        "banned_words": len(glossary.used(glossary.banned(), glossary.identifiers())),
        "source_lines": sum(len(module.text.splitlines()) for module in modules),
        "code_lines": sum(map(source.code_lines, modules)),
    }


def _path_values() -> dict[str, float]:
    outbox, table = paths.outbox_row(), paths.table_row()
    acknowledging = hops_of(paths.acknowledgement())
    queries = paths.snapshot_queries(paths.idle_turn())
    cache_record = hops_of(paths.cache_record())
    return {
        "outbox_modules": hops_of(within(outbox, paths.CONSUMER)).modules,
        "outbox_calls": hops_of(outbox).calls,
        "outbox_switches": hops_of(outbox).switches,
        "table_modules": hops_of(within(table, paths.CONSUMER)).modules,
        "table_calls": hops_of(table).calls,
        "table_switches": hops_of(table).switches,
        "acknowledging_calls": acknowledging.calls,
        "acknowledging_switches": acknowledging.switches,
        "idle_snapshot_calls": len(queries),
        "cache_modules": cache_record.modules,
        "cache_calls": cache_record.calls,
        "cache_switches": cache_record.switches,
    }


def _sink_values() -> dict[str, float]:
    sinks = [module for module in _modules() if module.member == "sinks"]
    ports_path = Path("sinks/src/towpath/sinks/ports.py")
    [ports] = [module for module in sinks if module.path == ports_path]
    verbs, flags = source.sink_ports(ports)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {
        "write_strategies": len(source.write_strategies(sinks)),
        "sink_verbs": len(verbs),
        "sink_flags": len(flags),
        "sink_layers": source.layers(project),
    }


def _test_values() -> dict[str, float | None]:
    tests = modules_below(ROOT, "tests/**/*.py")
    run = last_run()
    return {
        "private_accesses": sum(len(source.private_accesses(test)) for test in tests),
        "readme_lines": len(README.read_text(encoding="utf-8").splitlines()),
        "test_minutes": None if run is None else round(run.seconds / 60, 1),
    }
