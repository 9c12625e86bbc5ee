"""The project's pages as data: blocks of commands, code spans, links, anchors."""

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).parents[2]
README: Final = ROOT / "README.md"
DOCS: Final = ROOT / "docs"
# Written by a run of locust, and not edited.
_WRITTEN: Final = DOCS / "load-run"

_FENCE: Final = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)$")
_SPAN: Final = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK: Final = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")
_HEADING: Final = re.compile(r"^#{1,6} +(.+?) *$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: the words after its fence, the text, and its first line."""

    info: tuple[str, ...]
    text: str
    line: int

    @property
    def language(self) -> str:
        """The first word of the fence."""
        return self.info[0] if self.info else ""


def imported_program(path: Path) -> ModuleType:
    """Import a program that makes a part of the documentation."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages() -> list[Path]:
    """List README, changelog and all pages of the documentation."""
    found = (page for page in DOCS.rglob("*.md") if _WRITTEN not in page.parents)
    return [README, ROOT / "CHANGELOG.md", *sorted(found)]


def name_of(page: Path) -> str:
    """Return the name of a page for failure messages."""
    return page.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[Block]:
    """Read the fenced blocks of a page."""
    return list(_split(text)[1])


def prose(text: str) -> str:
    """Return a page without its fenced blocks."""
    return _split(text)[0]


def spans(text: str) -> list[str]:
    """List the code spans of a page's prose."""
    return _SPAN.findall(prose(text))


def plain(text: str) -> str:
    """Return a page's prose without its code spans."""
    return _SPAN.sub("", prose(text))


def links(text: str) -> list[str]:
    """List the targets of a page's links, pictures included."""
    return _LINK.findall(_SPAN.sub("`code`", prose(text)))


@cache
def anchors(page: Path) -> frozenset[str]:
    """List the anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    for line in prose(page.read_text(encoding="utf-8")).splitlines():
        if heading := _HEADING.match(line):
            anchor = _slug(heading[1])
            found[anchor] = found.get(anchor, -1) + 1
    repeated = {
        f"{name}-{n}" for name, last in found.items() for n in range(1, last + 1)
    }
    return frozenset(found) | repeated


def _slug(heading: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def _split(text: str) -> tuple[str, Iterator[Block]]:
    outside, found = [], []
    opened: tuple[re.Match[str], int] | None = None
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if opened and line.strip() == "```":
            indent = len(opened[0]["indent"])
            body = "".join(f"{one[indent:]}\n" for one in inside)
            found.append(Block(tuple(opened[0]["info"].split()), body, opened[1]))
            opened, inside = None, []
        elif opened:
            inside.append(line)
        elif fence:
            opened = fence, number
        else:
            outside.append(line)
    assert opened is None, f"the block at line {opened[1]} has no end"
    return "\n".join(outside), iter(found)
