"""Run the command blocks of the pages that need nothing but the project."""

import pytest

from support.page_commands import in_project, run, script
from support.pages import Block, blocks, name_of, pages

MARKS = {"run", "run-stack"}
CHEAP = [
    pytest.param(block, id=f"{name_of(page)}:{block.line}")
    for page in pages()
    for block in blocks(page.read_text(encoding="utf-8"))
    if "run" in block.info
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("block", CHEAP)
def test_a_block_that_is_marked_as_runnable_succeeds(block, tmp_path):
    """
    Each command of a block that is fenced with "run" ends with exit code 0.
    """
    code, printed = run(in_project(block), tmp_path, {}, 50.0)

    assert code == 0, printed


def test_every_block_has_a_known_mark():
    """
    No test would run a block with a misspelled mark.
    """
    found = [
        f"{name_of(page)}:{block.line}: {word}"
        for page in pages()
        for block in blocks(page.read_text(encoding="utf-8"))
        for word in block.info[1:]
        if word not in MARKS
    ]

    assert found == []
    assert len(CHEAP) >= 3


def test_a_block_that_fails_is_detected(tmp_path):
    """
    A failing command ends the script, even before the last line and in a pipe.
    """
    for text in ("false\ntrue\n", "false | true\n"):
        code, _ = run(script([Block(("sh",), text, 1)]), tmp_path, {}, 10.0)

        assert code == 1
