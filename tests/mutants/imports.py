"""The static import graph: the tests that reach a module, nearest first."""

import ast
from collections import deque
from pathlib import Path
from typing import Final

from mutants.catalogue import ROOT

TESTED_BY: Final = ("tests/unit", "tests/property")


class ImportGraph:
    """
    The imports among the members' modules, the tests' support modules and the tests.
    """

    def __init__(self) -> None:
        sources = [*ROOT.glob("*/src"), ROOT / "tests"]
        self._files: dict[str, Path] = {}
        for source in sources:
            for path in source.rglob("*.py"):
                self._files[_dotted(path.relative_to(source))] = path
        self._names = {path: name for name, path in self._files.items()}
        self._importers: dict[str, set[str]] = {}
        for name, path in self._files.items():
            for imported in self._imported(path):
                self._importers.setdefault(imported, set()).add(name)

    def tests_of(self, file: str) -> list[str]:
        """List the unit and property tests that reach a source file, nearest first."""
        start = self._names.get(ROOT / file)
        if start is None:
            return []
        found: list[tuple[int, str]] = []
        distance = {start: 0}
        queue = deque([start])
        while queue:
            name = queue.popleft()
            path = self._files[name].relative_to(ROOT).as_posix()
            if path.startswith(TESTED_BY) and Path(path).name.startswith("test_"):
                found.append((distance[name], path))
            for importer in self._importers.get(name, ()):
                if importer not in distance:
                    distance[importer] = distance[name] + 1
                    queue.append(importer)
        # At equal distance, cheap tests come first: a property has hundreds of
        # examples.
        found.sort(key=lambda one: (one[0], "property" in one[1], one[1]))
        return [path for _, path in found]

    def _imported(self, path: Path) -> set[str]:
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        return {name for name in names if name in self._files}


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
