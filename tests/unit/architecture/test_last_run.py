"""The duration of the last ``make test`` is kept for ``make house``."""

from types import SimpleNamespace

import pytest

from support.last_run import MARKS, LastRun, keep, last_run, runs_all_tests
from support.pages import ROOT

EVERYWHERE = pytest.Config.ArgsSource.TESTPATHS


def config(marks=MARKS, source=EVERYWHERE, keyword=""):
    """Make the parts of pytest's configuration that the recorder reads."""
    option = SimpleNamespace(
        markexpr=marks, keyword=keyword, lf=False, collectonly=False
    )
    return SimpleNamespace(option=option, args_source=source)


def test_only_a_complete_run_of_make_test_is_kept():
    """
    Runs with other marks, with named files or with a keyword are not kept.
    """
    named = pytest.Config.ArgsSource.ARGS
    others = [config("soak"), config(source=named), config(keyword="relay")]

    assert runs_all_tests(config())
    assert [False] * 3 == [runs_all_tests(other) for other in others]


def test_the_last_run_is_stored_and_read(tmp_path):
    """
    A run has a duration and pytest's name for the outcome; without a run, None is read.
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
    It would replace the duration of the last complete run.
    """
    path = tmp_path / "last-test.json"
    keep(SimpleNamespace(config=config(keyword="relay")), 0, path)

    assert last_run(path) is None


def test_make_test_uses_the_marks_of_a_complete_run():
    """
    The Makefile and the recorder have the same marks.
    """
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert f'-m "{MARKS}"' in makefile.partition("\ntest:")[2].partition("\n\n")[0]
