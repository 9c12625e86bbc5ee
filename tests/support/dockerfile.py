"""The stages and instructions of a Dockerfile that tests need."""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from towpath.sinks.jars.store import CLONE

OURS = CLONE / "deploy" / "images" / "Dockerfile"


@dataclass
class Stage:
    """One ``FROM`` with the instructions below it."""

    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def of(self, name: str) -> list[str]:
        """Return the arguments of every instruction of a kind, in order."""
        return [text for kind, text in self.instructions if kind == name]


def stages(text: str) -> dict[str, Stage]:
    """Parse a Dockerfile; the stage ``""`` has the lines before the first ``FROM``."""
    found = {"": Stage(base="")}
    for kind, arguments in _instructions(text):
        if kind == "FROM":
            base, _, name = arguments.partition(" AS ")
            found[name or base] = Stage(base=base)
        else:
            next(reversed(found.values())).instructions.append((kind, arguments))
    return found


def chain(all_stages: dict[str, Stage], name: str) -> list[Stage]:
    """Return a stage, preceded by the stages that it builds on, the base first."""
    stage = all_stages[name]
    bases = chain(all_stages, stage.base) if stage.base in all_stages else []
    return [*bases, stage]


def labels(all_stages: dict[str, Stage], name: str) -> dict[str, str]:
    """Return the labels of a stage, with those of the stages that it builds on."""
    lines = [line for s in chain(all_stages, name) for line in s.of("LABEL")]
    pairs = [pair.partition("=") for line in lines for pair in shlex.split(line)]
    return {key: value for key, _, value in pairs}


def ours(path: Path = OURS) -> dict[str, Stage]:
    """Read the Dockerfile of Towpath's images."""
    return stages(path.read_text(encoding="utf-8"))


def _instructions(text: str) -> list[tuple[str, str]]:
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(kept) + "\n")
    lines = [line.strip() for line in joined.splitlines() if line.strip()]
    return [
        (kind, arguments) for kind, _, arguments in (ln.partition(" ") for ln in lines)
    ]
