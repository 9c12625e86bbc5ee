"""The page of findings matches the ids in the source."""

import ast
import re
from collections.abc import Iterator

import pytest

from support.pages import DOCS, ROOT, anchors
from towpath.deploy.doctor import DoctorFinding

# Functions that make a finding; the id is their first argument. ``level`` is a variable
# that refers to one of them.
_MAKERS = frozenset(
    {"error_finding", "warning_finding", "info_finding", "level", "_unchecked"}
)
_ID = re.compile(r"[a-z]+(-[a-z]+)+")


def ids_of(text: str) -> Iterator[str]:
    """Extract the ids of findings from a module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            first = node.args[0] if node.args else None
            if node.func.id in _MAKERS and isinstance(first, ast.Constant):
                yield first.value


def headings(text: str) -> list[str]:
    """List the ids that a page explains."""
    return [line[4:] for line in text.splitlines() if line.startswith("### ")]


# The test parses every module, which takes seconds on a busy machine.
@pytest.mark.timeout(60)
def test_every_finding_has_a_heading_and_every_heading_a_finding():
    """
    A new id needs a paragraph in docs/doctor.md, and a removed one must have none.
    """
    sources = ROOT.glob("*/src/towpath/**/*.py")
    found = {each for path in sources for each in ids_of(path.read_text("utf-8"))}
    explained = headings((DOCS / "doctor.md").read_text("utf-8"))

    assert sorted(found) == sorted(explained)
    assert len(found) > 120
    assert [each for each in found if not _ID.fullmatch(each)] == []


def test_every_paragraph_has_an_effect_and_a_remedy():
    """
    A heading alone is no help: severity, example, effect and remedy must follow.
    """
    text = (DOCS / "doctor.md").read_text("utf-8")
    parts = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    form = re.compile(
        r"\S+\n\n(Error|Warning|Information|Unavailable)[^:]*: `.+`\n\n"
        r"- Leads to: .+\.\n- Cure: .+\.(\n|$)"
    )

    assert [part.split("\n")[0] for part in parts if not form.match(part)] == []


def test_the_page_of_a_finding_exists():
    """
    The link in the report leads to an existing heading.
    """
    row = DoctorFinding("source", "error", "x", "y", "z", "slot-lost")
    name, _, anchor = row.page.partition("#")

    assert (DOCS / "doctor.md") == ROOT / name
    assert anchor in anchors(ROOT / name)


_PAGE = re.compile(r"docs/[\w/-]+\.md(?:#[\w-]+)?")
_IN_RUNBOOK = re.compile(r"(\w+Error)(?= in the runbook)|docs/runbook\.md, (\w+Error)")


def page_links(text: str) -> Iterator[str]:
    """Yield the pages and headings to which a module's texts refer."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _PAGE.findall(node.value)
            for names in _IN_RUNBOOK.findall(node.value):
                yield f"docs/runbook.md#{''.join(names).lower()}"


def exists(link: str) -> bool:
    """Return whether a page and its heading exist."""
    name, _, anchor = link.partition("#")
    page = ROOT / name
    return page.is_file() and (not anchor or anchor in anchors(page))


@pytest.mark.timeout(60)
def test_every_page_that_a_message_names_exists():
    """
    A remedy, a finding or a log record refers only to existing pages and headings.
    """
    sources = ROOT.glob("*/src/towpath/**/*.py")
    found = {link for path in sources for link in page_links(path.read_text("utf-8"))}

    assert len(found) > 2
    assert [link for link in sorted(found) if not exists(link)] == []


@pytest.mark.parametrize(
    ("message", "link"),
    [
        ("see docs/gone.md", "docs/gone.md"),
        ("see docs/runbook.md#gone", "docs/runbook.md#gone"),
        ("see GoneError in the runbook", "docs/runbook.md#goneerror"),
        ("(docs/runbook.md, GoneError)", "docs/runbook.md#goneerror"),
    ],
)
def test_a_planted_missing_page_is_found(message: str, link: str):
    """
    Pages, headings and names of errors are all checked.
    """
    found = [each for each in page_links(f"x = {message!r}") if not exists(each)]

    assert found == [link]
