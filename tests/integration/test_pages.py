"""The command blocks of the how-to pages, run on the stack, page by page."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.page_commands import run, script
from support.pages import DOCS, Block, blocks, name_of, pages
from support.slots import drop_slot
from support.topics import read_to_end

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


# The page whose table and configuration file the other pages continue with.
FIRST = DOCS / "how-to/capture-a-table.md"
# The page for newcomers with servers of their own; its claims are checked, too.
OWN = DOCS / "how-to/own-servers.md"
HARMLESS = {"warning", "info"}
# Names of the checks that follow blocks of that page, by a block's first command.
CHECKS = {
    "towpath config check": "missing",
    "towpath relay init --dry-run": "prepared",
    "towpath snapshot start": "filled",
}


def marked(page: Path) -> list[Block]:
    """List the blocks of a page that run on the stack, in order."""
    text = page.read_text(encoding="utf-8")
    return [block for block in blocks(text) if "run-stack" in block.info]


def runnable(page: Path) -> list[Block]:
    """List the blocks to run for a page; it may continue the first page's example."""
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
def test_the_commands_of_a_page_succeed(page, stack, database, unique, tmp_path):
    """
    The blocks of a page that are marked with "run-stack" end with exit code 0.

    The environment sets the addresses, the slot and the prefix of the topics; the file
    of the page is unchanged.
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


def with_checks(found: list[Block]) -> Iterator[Block]:
    """Yield the blocks, each followed by its check with the doctor, if it has one."""
    for block in found:
        yield block
        if block.language == "sql":
            # The blocks that follow take the address from the file.
            yield Block(("sh",), "unset TOWPATH_SOURCE__DSN\n", block.line)
        for command, name in CHECKS.items():
            if block.text.startswith(command):
                check = f"towpath doctor --json > {name}.json || true\n"
                yield Block(("sh",), check, block.line)


def findings(folder: Path, name: str) -> list[dict[str, str]]:
    """Return the findings of a check."""
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def test_a_newcomer_gets_a_relay_running_from_the_page_alone(
    stack, database, unique, tmp_path
):
    """
    Only addresses and names in the page's file are changed; each step works as stated.

    Before ``init``, the remedy of every error is ``init``. After it, no error remains,
    and the relay reads its slot and fills the topic.
    """
    addresses = {
        "postgresql://localhost/shop": database,
        "localhost:9092": stack.kafka,
        "[[source]]": f'[[source]]\nprefix = "{unique}"\nslot = "{unique}"',
    }
    text = script(with_checks(marked(OWN)))
    for written, own in addresses.items():
        assert 1 == text.count(written)
        text = text.replace(written, own)
    try:
        code, printed = run(text, tmp_path, {"TOWPATH_SOURCE__DSN": database}, 100.0)
    finally:
        drop_slot(database, unique)

    assert code == 0, printed[-5000:]
    missing, prepared, filled = (findings(tmp_path, name) for name in CHECKS.values())
    remedies = {one["cure"] for one in missing if one["level"] == "error"}
    levels = {one["level"] for one in prepared}
    ids = [{one["id"] for one in each} for each in (prepared, filled)]
    assert ({"run towpath relay init"}, set()) == (remedies, levels - HARMLESS)
    assert [True, False] == ["slot-inactive" in each for each in ids]
    assert "active             True" in printed
    assert 100 == len(read_to_end(stack.kafka, f"{unique}.shop.orders"))
