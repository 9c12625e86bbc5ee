"""The command blocks of the how-to pages, carried out on the stack, page by page."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.page_commands import run, script
from support.pages import DOCS, Block, blocks, name_of, pages
from support.slots import drop_slot
from support.topics import read_to_end

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


# The page whose table and file the other pages go on with.
FIRST = DOCS / "how-to/capture-a-table.md"
# The page of a newcomer with servers of their own, whose promises are held too.
OWN = DOCS / "how-to/own-servers.md"
HARMLESS = {"warning", "info"}
# Blocks of that page, by their first command, and the file with the findings after it.
LOOKS = {
    "towpath config check": "missing",
    "towpath relay init --dry-run": "prepared",
    "towpath snapshot start": "filled",
}


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


PAGES = [
    pytest.param(page, id=name_of(page))
    for page in pages()
    if marked(page) and page != OWN
]


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


def looking(found: list[Block]) -> Iterator[Block]:
    """Yield the blocks, with a look at the findings behind those that have one."""
    for block in found:
        yield block
        if block.language == "sql":
            # From here on the address is that of the file.
            yield Block(("sh",), "unset TOWPATH_SOURCE__DSN\n", block.line)
        for command, name in LOOKS.items():
            if block.text.startswith(command):
                look = f"towpath doctor --json > {name}.json || true\n"
                yield Block(("sh",), look, block.line)


def findings(folder: Path, name: str) -> list[dict[str, str]]:
    """Return the findings of a look."""
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def test_a_newcomer_reaches_a_relay_by_the_page_alone(
    stack, database, unique, tmp_path
):
    """
    The file is the page's but for addresses and names, and each step has its promise.

    Before ``init`` the cure of every error is ``init``; after it no error is left; the
    relay reads its slot and fills the topic.
    """
    addresses = {
        "postgresql://localhost/shop": database,
        "localhost:9092": stack.kafka,
        "[[source]]": f'[[source]]\nprefix = "{unique}"\nslot = "{unique}"',
    }
    text = script(looking(marked(OWN)))
    for written, own in addresses.items():
        assert 1 == text.count(written)
        text = text.replace(written, own)
    try:
        code, printed = run(text, tmp_path, {"TOWPATH_SOURCE__DSN": database}, 100.0)
    finally:
        drop_slot(database, unique)

    assert code == 0, printed[-5000:]
    missing, prepared, filled = (findings(tmp_path, name) for name in LOOKS.values())
    wrong = {one["cure"] for one in missing if one["level"] == "error"}
    levels = {one["level"] for one in prepared}
    ids = [{one["id"] for one in each} for each in (prepared, filled)]
    assert ({"run towpath relay init"}, set()) == (wrong, levels - HARMLESS)
    assert [True, False] == ["slot-inactive" in each for each in ids]
    assert "active             True" in printed
    assert 100 == len(read_to_end(stack.kafka, f"{unique}.shop.orders"))
