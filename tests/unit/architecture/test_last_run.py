"""The duration of the last ``make test``, kept for ``make house``."""

from types import SimpleNamespace

import pytest

from support.last_run import MARKS, LastRun, is_whole, keep, last_run
from support.pages import ROOT

EVERYWHERE = pytest.Config.ArgsSource.TESTPATHS


def config(marks=MARKS, source=EVERYWHERE, keyword=""):
    """Make what is read of pytest's configuration."""
    option = SimpleNamespace(
        markexpr=marks, keyword=keyword, lf=False, collectonly=False
    )
    return SimpleNamespace(option=option, args_source=source)


def test_only_a_whole_run_of_make_test_is_kept():
    """
    Neither other marks, nor named files, nor a keyword.
    """
    named = pytest.Config.ArgsSource.ARGS
    others = [config("soak"), config(source=named), config(keyword="relay")]

    assert is_whole(config())
    assert [False] * 3 == [is_whole(other) for other in others]


def test_the_last_run_is_read_as_it_was_kept(tmp_path):
    """
    Seconds and pytest's word for the end; none before the first run.
    """
    path = tmp_path / "state" / "last-test.json"
    before = last_run(path)
    keep(SimpleNamespace(config=config()), pytest.ExitCode.TESTS_FAILED, path)
    after = last_run(path)

    assert before is None
    assert isinstance(after, LastRun)
    assert ("tests failed", True) == (after.outcome, after.seconds > 0)


def test_a_partial_run_is_not_kept(tmp_path):
    """
    The figure of the last whole run stays.
    """
    path = tmp_path / "last-test.json"
    keep(SimpleNamespace(config=config(keyword="relay")), 0, path)

    assert last_run(path) is None


def test_make_test_has_the_marks_by_which_a_whole_run_is_known():
    """
    The Makefile and the recorder name the same marks.
    """
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert f'-m "{MARKS}"' in makefile.partition("\ntest:")[2].partition("\n\n")[0]
