"""The page of findings, held against the ids in the source."""

import ast
import re
from collections.abc import Iterator

import pytest

from support.pages import DOCS, ROOT, anchors
from towpath.deploy.doctor import DoctorFinding

# Functions that make a finding; the id is their first argument. ``level`` is a variable
# that holds one of them.
_MAKERS = frozenset(
    {"error_finding", "warning_finding", "info_finding", "level", "_unchecked"}
)
_ID = re.compile(r"[a-z]+(-[a-z]+)+")


def ids_of(text: str) -> Iterator[str]:
    """Read the ids of findings off a module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            first = node.args[0] if node.args else None
            if node.func.id in _MAKERS and isinstance(first, ast.Constant):
                yield first.value


def headings(text: str) -> list[str]:
    """List the ids that a page explains."""
    return [line[4:] for line in text.splitlines() if line.startswith("### ")]


# It parses every module, which takes seconds on a busy machine.
@pytest.mark.timeout(60)
def test_every_finding_has_a_heading_and_no_heading_is_left_over():
    """
    A new id needs its paragraph in docs/doctor.md, a dropped one takes it along.
    """
    sources = ROOT.glob("*/src/towpath/**/*.py")
    found = {each for path in sources for each in ids_of(path.read_text("utf-8"))}
    explained = headings((DOCS / "doctor.md").read_text("utf-8"))

    assert sorted(found) == sorted(explained)
    assert len(found) > 120
    assert [each for each in found if not _ID.fullmatch(each)] == []


def test_every_paragraph_says_what_it_leads_to_and_how_it_is_cured():
    """
    A heading alone helps nobody: severity and example, effect, cure.
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
    The report's link leads to a heading.
    """
    row = DoctorFinding("source", "error", "x", "y", "z", "slot-lost")
    name, _, anchor = row.page.partition("#")

    assert (DOCS / "doctor.md") == ROOT / name
    assert anchor in anchors(ROOT / name)


_PAGE = re.compile(r"docs/[\w/-]+\.md(?:#[\w-]+)?")
_IN_RUNBOOK = re.compile(r"(\w+Error)(?= in the runbook)|docs/runbook\.md, (\w+Error)")


def places_of(text: str) -> Iterator[str]:
    """Walk the pages and headings that the texts of a module send people to."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _PAGE.findall(node.value)
            for names in _IN_RUNBOOK.findall(node.value):
                yield f"docs/runbook.md#{''.join(names).lower()}"


def is_there(place: str) -> bool:
    """Return whether a page exists, and has the heading."""
    name, _, anchor = place.partition("#")
    page = ROOT / name
    return page.is_file() and (not anchor or anchor in anchors(page))


@pytest.mark.timeout(60)
def test_every_page_that_a_message_names_exists():
    """
    A remedy, a finding or a log record sends nobody to a page or heading that is gone.
    """
    sources = ROOT.glob("*/src/towpath/**/*.py")
    found = {place for path in sources for place in places_of(path.read_text("utf-8"))}

    assert len(found) > 2
    assert [place for place in sorted(found) if not is_there(place)] == []


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("see docs/gone.md", "docs/gone.md"),
        ("see docs/runbook.md#gone", "docs/runbook.md#gone"),
        ("see GoneError in the runbook", "docs/runbook.md#goneerror"),
        ("(docs/runbook.md, GoneError)", "docs/runbook.md#goneerror"),
    ],
)
def test_a_planted_page_that_is_gone_is_found(message: str, place: str):
    """
    Pages, headings and names of errors are all looked up.
    """
    found = [each for each in places_of(f"x = {message!r}") if not is_there(each)]

    assert found == [place]
