"""The reader of tutorials follows a page, and detects where the page is wrong."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.tutorial import (
    Command,
    FileText,
    ReaderShell,
    TutorialError,
    matches,
    put,
    steps,
)

PAGE = """\
Install it:

```console
$ first \\
> second
printed ...
$ third
```

`folder/file.toml`

```toml
key = 1
```

It changes:

`folder/file.toml`

```diff
-key = 1
+key = 2
```
"""


@pytest.fixture
def reader(tmp_path) -> Iterator[ReaderShell]:
    """Provide a shell in an empty folder."""
    folder = tmp_path / "folder"
    folder.mkdir()
    shell = ReaderShell(folder, {"PATH": os.defpath})
    yield shell
    shell.close()


def test_a_page_is_read_as_commands_and_files():
    """
    Commands have their continuation lines and output; files are named above the block.
    """
    assert steps(PAGE) == [
        Command("first \\\nsecond", ("printed ...",), 4),
        Command("third", (), 7),
        FileText("folder/file.toml", "key = 1\n", False, 12),
        FileText("folder/file.toml", "-key = 1\n+key = 2\n", True, 20),
    ]


@pytest.mark.parametrize(
    "page", ["Text\n\n```toml\nkey = 1\n```\n", "```console\nprinted\n$ first\n```\n"]
)
def test_a_block_that_no_reader_could_follow_is_refused(page):
    """
    A file without a name and output without a command are rejected.
    """
    with pytest.raises(TutorialError):
        steps(page)


@pytest.mark.parametrize(
    ("expected", "printed", "is_right"),
    [
        ((), "", True),
        ((), "a warning\n", False),
        (("3 posts",), "3 posts\n", True),
        (("3 posts",), "4 posts\n", False),
        (("3 posts",), "3 posts  \nmore\n", False),
        (("after ... s",), "after 0.3 s\n", True),
        (("after ... s",), "after 0.3 ms\n", False),
        (("...", "last"), "one\ntwo\nlast\n", True),
        (("...", "last"), "last\n", True),
        (("...", "last"), "last\nmore\n", False),
        (("a.b",), "axb\n", False),
        ((), "/dev/fd/3: line 4: 17 Killed   python consumer.py\n", True),
    ],
)
def test_output_matches_what_the_page_shows(expected, printed, is_right):
    """
    Dots match any text or lines; everything else must be printed.
    """
    assert matches(expected, printed) is is_right


def test_files_are_written_changed_and_compared(tmp_path):
    """
    A new file is written, a diff changes its one match, and shown lines are compared.
    """
    written, changed = steps(PAGE)[2:]
    path = tmp_path / "folder/file.toml"

    put(written, tmp_path)
    assert path.read_text() == "key = 1\n"
    put(written, tmp_path)
    put(changed, tmp_path)
    assert path.read_text() == "key = 2\n"
    for wrong in (written, changed):
        with pytest.raises(TutorialError):
            put(wrong, tmp_path)


def test_complete_lines_are_compared(tmp_path):
    """
    The end of a longer line does not count as a line of the file.
    """
    path = Path(tmp_path, "file.toml")
    path.write_text("my_key = 1\n")

    with pytest.raises(TutorialError):
        put(FileText("file.toml", "key = 1\n", is_diff=False, line=1), tmp_path)


def test_one_shell_runs_all_commands(reader):
    """
    Variables and background jobs persist between commands.
    """
    reader.run(Command("cat > file &\nword=kept", (), 1), 4.0)
    reader.run(Command("echo $word", ("kept",), 2), 4.0)
    reader.run(Command("wait", (), 3), 4.0)
    reader.run(Command("ls", ("file",), 4), 4.0)


@pytest.mark.parametrize(
    ("command", "timeout_s"),
    [
        (Command("false", (), 1), 4.0),
        (Command("echo a", ("b",), 1), 4.0),
        (Command("exit 0", ("shown",), 1), 4.0),
        (Command("tail -f /dev/null", (), 1), 0.3),
    ],
)
def test_a_command_that_does_not_behave_as_shown_fails(reader, command, timeout_s):
    """
    It may fail, print different output, close its shell, or not end in time.
    """
    with pytest.raises(TutorialError, match="line 1"):
        reader.run(command, timeout_s)
