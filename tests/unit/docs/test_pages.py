"""Every link on the pages leads to a target, and every page is in the index."""

from pathlib import Path
from urllib.parse import unquote

import pytest

from support.pages import DOCS, README, ROOT, anchors, blocks, links, name_of, pages

README_LINES = 120


def dead_links(page: Path, text: str) -> list[str]:
    """List the relative links of a page whose targets do not exist."""
    found = []
    for link in links(text):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or not target.is_relative_to(ROOT):
            found.append(f"{name_of(page)}: no file: {link}")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            found.append(f"{name_of(page)}: no heading: {link}")
    return found


def test_every_link_of_the_pages_leads_to_a_file_and_a_heading():
    """
    No page links to a file or a heading that does not exist.
    """
    found = [
        line
        for page in pages()
        for line in dead_links(page, page.read_text(encoding="utf-8"))
    ]

    assert found == []


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("[a](docs/gone.md)", "no file: docs/gone.md"),
        ("![a](docs/gone.svg)", "no file: docs/gone.svg"),
        ("[a](docs/index.md#gone)", "no heading: docs/index.md#gone"),
        ("[`a`](#gone)", "no heading: #gone"),
        ("[a](../outside.md)", "no file: ../outside.md"),
    ],
)
def test_a_planted_dead_link_is_found(text: str, finding: str):
    """
    The check covers files, pictures, headings, and links that leave the project.
    """
    assert dead_links(README, text) == [f"README.md: {finding}"]


def test_links_to_files_headings_and_sites_are_not_reported():
    """
    Existing targets are not reported, and other sites are not visited.
    """
    text = "[a](docs/index.md) [b](docs/index.md#learn) [c](https://example.org/x)"

    assert dead_links(README, text) == []


def test_the_index_links_every_page():
    """
    A reader would not find a page that the index does not link.
    """
    index = DOCS / "index.md"
    linked = {
        (DOCS / link.partition("#")[0]).resolve()
        for link in links(index.read_text(encoding="utf-8"))
    }
    missing = [name_of(page) for page in pages() if page not in (README, index)]

    assert [] == [name for name in missing if (ROOT / name) not in linked]


def test_the_readme_is_short_and_shows_a_picture_and_two_commands():
    """
    The README has at most 120 lines, one picture, and the two commands.
    """
    text = README.read_text(encoding="utf-8")
    commands = [b.text for b in blocks(text) if b.language == "sh"]
    pictures = [link for link in links(text) if link.endswith(".svg")]

    assert len(text.splitlines()) <= README_LINES
    assert len(pictures) == 1
    assert [line.split("  ")[0] for line in commands[0].splitlines()] == [
        "make demo",
        "make test",
    ]
    assert len(commands) == 1


def test_ci_runs_the_test_command_of_the_readme():
    """
    CI runs exactly the command that the README shows.
    """
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")

    assert script.rstrip().endswith("exec make test")
