"""
The log of a part: its last lines, and the lines appended to it.
"""

import pytest

from towpath.cli import app as root
from towpath.deploy.cli.stack import follow_file, last_lines


class Steps:
    """A clock whose waits run one step each."""

    def __init__(self, *steps):
        self._steps = iter(steps)

    def wait(self, _delay_s):
        next(self._steps)()


def test_lines_written_before_the_log_is_followed_are_shown(tmp_path):
    """
    The appended lines are shown after the last lines, and no line is shown twice.
    """
    log = tmp_path / "kafka.log"
    log.write_text("one\ntwo\nthree\n", encoding="utf-8")
    text, offset = last_lines(log, 2)
    with log.open("a", encoding="utf-8") as file:
        file.write("four\n")

    assert "two\nthree\n" == text
    assert "four\n" == next(follow_file(log, offset))


def test_a_character_written_in_two_parts_is_shown_complete(tmp_path):
    """
    Its second half may arrive after a wait.
    """
    log = tmp_path / "kafka.log"
    first, second = "f\u00fcr\n".encode()[:2], "f\u00fcr\n".encode()[2:]
    log.write_bytes(first)

    def complete():
        log.write_bytes(first + second)

    found = follow_file(log, 0, Steps(complete))

    assert ["f", "\u00fcr\n"] == [next(found), next(found)]


def test_a_log_is_followed_while_it_is_rotated(tmp_path):
    """
    For a moment there is no file; the next one is read from its beginning.
    """
    log = tmp_path / "kafka.log"
    log.write_text("old\n", encoding="utf-8")

    def create():
        log.write_text("a longer line\n", encoding="utf-8")

    found = follow_file(log, 4, Steps(log.unlink, create))

    assert "a longer line\n" == next(found)


def test_a_new_log_longer_than_the_old_one_is_read_from_its_beginning(tmp_path):
    """
    Lines written to the old log before the rotation are shown first.
    """
    log = tmp_path / "kafka.log"
    log.write_text("old\n", encoding="utf-8")

    def rotate():
        with log.open("a", encoding="utf-8") as file:
            file.write("last\n")
        log.replace(tmp_path / "kafka.log.1")
        log.write_text("first of several\nsecond\n", encoding="utf-8")

    found = follow_file(log, 4, Steps(rotate))

    assert ["last\n", "first of several\nsecond\n"] == [next(found), next(found)]


def test_a_truncated_log_is_read_from_its_beginning(tmp_path):
    """
    The file is the same one, but shorter.
    """
    log = tmp_path / "kafka.log"
    log.write_text("a long line\n", encoding="utf-8")
    found = follow_file(log, 12, Steps(lambda: log.write_text("new\n")))

    assert "new\n" == next(found)


@pytest.mark.parametrize("command", ["status", "down", "logs kafka"])
def test_an_unusable_state_folder_gives_one_error(command, capsys):
    """
    Its name is longer than the file system allows.
    """
    assert root.run([*command.split(), "--state", "a" * 300]) == 2
    assert "File name too long\nremedy: " in capsys.readouterr().err


def test_a_log_that_cannot_be_read_gives_one_error(tmp_path, capsys):
    """
    The name of the part is longer than the file system allows.
    """
    (tmp_path / "logs").mkdir()
    assert root.run(["logs", "a" * 300, "--state", str(tmp_path)]) == 2
    assert "File name too long\nremedy: " in capsys.readouterr().err
