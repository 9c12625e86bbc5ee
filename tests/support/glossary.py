"""The glossary as data, and the words of the source's identifiers."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

from support.pages import DOCS, ROOT

GLOSSARY = DOCS / "glossary.md"
MEMBERS = "*/src/**/*.py"
TESTS = "tests/**/*.py"
_ROW = re.compile(r"^\| (\*\*.+?) \| (.+?) \| (.*?) \| ?(.*?) ?\|$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+")


def rows() -> list[tuple[str, ...]]:
    """Read the glossary's rows: term, meaning, code, words not used."""
    return _ROW.findall(GLOSSARY.read_text(encoding="utf-8"))


def banned() -> set[str]:
    """List the words that identifiers must not contain."""
    listed = {word.strip() for *_, words in rows() for word in words.split(",")}
    single = {word for word in listed if word and " " not in word}
    return single | replaced_words()


def replaced_words() -> set[str]:
    """List our own words that the code has replaced with the field's terms."""
    text = GLOSSARY.read_text(encoding="utf-8")
    return set(CODE.findall(text.partition("## Words that")[2]))


def identifiers_of(source: str) -> Iterator[str]:
    """Yield the names that a module defines, uses or imports."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                yield name
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.alias(name=name, asname=other):
                yield from name.split(".")
                yield other or name
            case ast.keyword(arg=str(name)):
                yield name


@cache
def identifiers(modules: str = MEMBERS) -> frozenset[str]:
    """List the identifiers and names of modules, by default those of all members."""
    found: set[str] = set()
    for path in ROOT.glob(modules):
        found.update(identifiers_of(path.read_text(encoding="utf-8")))
        found |= {path.stem, path.parent.name}
    return frozenset(found)


def words_of(identifier: str) -> set[str]:
    """Split an identifier into its words, in lower case."""
    return {word.lower() for word in _WORD.findall(identifier)}


def used(words: set[str], names: frozenset[str]) -> dict[str, set[str]]:
    """Return the words that occur in names, each with the names that contain it."""
    found: dict[str, set[str]] = defaultdict(set)
    for name in names:
        for word in words & words_of(name):
            found[word].add(name)
    return dict(found)
