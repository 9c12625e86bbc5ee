"""The command blocks of the how-to pages, carried out on the stack, page by page."""

from pathlib import Path

import pytest

from support.page_commands import run, script
from support.pages import DOCS, Block, blocks, name_of, pages
from support.slots import drop_slot

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


# The page whose table and file the other pages go on with.
FIRST = DOCS / "how-to/capture-a-table.md"


def marked(page: Path) -> list[Block]:
    """List the blocks of a page that run on the stack, in their order."""
    text = page.read_text(encoding="utf-8")
    return [block for block in blocks(text) if "run-stack" in block.info]


def runnable(page: Path) -> list[Block]:
    """List the blocks that run for a page, after the first page's example."""
    own = marked(page)
    if any(block.language == "toml" for block in own):
        return own
    sql, toml = (
        next(block for block in marked(FIRST) if block.language == language)
        for language in ("sql", "toml")
    )
    return [sql, toml, *own]


PAGES = [pytest.param(page, id=name_of(page)) for page in pages() if marked(page)]


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_end_well(page, stack, database, unique, tmp_path):
    """
    Every block of a page that is fenced with "run-stack" ends with exit code 0.

    The addresses, the slot and the topics' prefix are the test's own; the page's file
    stays as it is.
    """
    settings = {
        "TOWPATH_SOURCE__DSN": database,
        "TOWPATH_SCRATCH_DSN": database,
        "TOWPATH_SOURCE__PREFIX": unique,
        "TOWPATH_SOURCE__SLOT": unique,
        "TOWPATH_KAFKA__BOOTSTRAP_SERVERS": stack.kafka,
        "TOWPATH_LOG_FORMAT": "json",
    }
    try:
        code, printed = run(script(runnable(page)), tmp_path, settings, 100.0)
    finally:
        drop_slot(database, unique)

    assert code == 0, printed[-5000:]
