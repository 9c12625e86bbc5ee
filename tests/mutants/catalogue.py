"""The list of planted defects, read from the TOML files in this folder."""

import ast
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = Path(__file__).parent
_KEYS: Final = {"id", "breaks", "find", "replace", "file", "tests", "real"}


class Mutant(NamedTuple):
    """
    One planted defect.

    Attributes:
        id: Its name, unique in the list.
        breaks: The invariant (I1 to I9) or the concern that it violates.
        file: The source file, relative to the root of the project.
        find: The text to replace, which occurs exactly once in the file.
        replace: The replacement.
        tests: Test files or node ids to run; by default those nearest to the module.
        real: Whether the tests need real servers, and so run only with ``--real``.
    """

    id: str
    breaks: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...] = ()
    real: bool = False

    def patched(self) -> str:
        """
        Return the source text with the defect in it.

        Raises:
            ValueError: The text to replace is missing or ambiguous.
        """
        path = ROOT / self.file
        if not path.is_file():
            message = f"{self.id}: there is no file {self.file}"
            raise ValueError(message)
        source = path.read_text(encoding="utf-8")
        if (count := source.count(self.find)) != 1:
            message = f"{self.id}: the text occurs {count} times in {self.file}"
            raise ValueError(message)
        return source.replace(self.find, self.replace)


def load() -> list[Mutant]:
    """
    Read the whole list.

    Raises:
        ValueError: An entry has an unknown or a missing key, or a name occurs twice.
    """
    mutants = [m for path in sorted(FOLDER.glob("*.toml")) for m in read(path)]
    seen: set[str] = set()
    for mutant in mutants:
        if mutant.id in seen:
            message = f"two mutants are named {mutant.id}"
            raise ValueError(message)
        seen.add(mutant.id)
    return mutants


def stale(mutants: Iterable[Mutant]) -> list[str]:
    """
    List entries that cannot be planted.

    Either an entry that needs real servers names no tests, the text does not occur
    exactly once, or the patched module is not valid Python.
    """
    found = []
    for mutant in mutants:
        if mutant.real and not mutant.tests:
            found.append(f"{mutant.id}: real, but names no tests")
        try:
            text = mutant.patched()
            if mutant.file.endswith(".py"):
                ast.parse(text)
        except SyntaxError as error:
            found.append(f"{mutant.id}: {error}")
        except ValueError as error:
            found.append(str(error))
    return found


def read(path: Path) -> Iterator[Mutant]:
    """
    Read one file: ``[[module]]`` tables with a ``file`` and its ``mutant`` entries.

    Raises:
        ValueError: An entry has an unknown or a missing key.
    """
    for module in tomllib.loads(path.read_text(encoding="utf-8"))["module"]:
        for entry in module["mutant"]:
            fields = {"file": module["file"], "tests": module.get("tests", ()), **entry}
            if unknown := fields.keys() - _KEYS:
                message = f"{path.name}: unknown keys {sorted(unknown)} in {entry}"
                raise ValueError(message)
            fields["tests"] = tuple(fields["tests"])
            try:
                yield Mutant(**fields)
            except TypeError as error:
                message = f"{path.name}: {entry}: {error}"
                raise ValueError(message) from error
