"""The demo takes and empties its own state folder, and no other folder."""

import errno
from pathlib import Path

import pytest

from towpath.deploy.cli.trials import demo_platform
from towpath.deploy.errors import DemoRunsError, NotADemoFolderError, StateFolderError
from towpath.deploy.local import own_stack
from towpath.deploy.local.own_stack import MARK, demo_folder
from towpath.schemas.failure import UsageError


def test_a_fresh_folder_is_marked(tmp_path):
    """
    A missing folder is created, and gets the demo's mark.
    """
    with demo_folder(tmp_path / "state" / "demo") as stack:
        names = [path.name for path in stack.state.root.iterdir()]

    assert names == [MARK]


def test_an_earlier_demos_folder_is_emptied(tmp_path):
    """
    The files of an earlier demo are deleted when the next one takes its folder.
    """
    with demo_folder(tmp_path):
        (tmp_path / "sinks" / "cache").mkdir(parents=True)
        (tmp_path / "towpath.toml").write_text("")
    with demo_folder(tmp_path) as stack:
        names = [path.name for path in stack.state.root.iterdir()]

    assert names == [MARK]


def test_nothing_is_removed_from_a_folder_without_the_mark(tmp_path):
    """
    A folder with other files is refused and left unchanged.
    """
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(NotADemoFolderError), demo_folder(tmp_path):
        pass

    assert (tmp_path / "precious").read_text() == "mine"


def test_a_folder_with_a_running_demo_is_refused(tmp_path):
    """
    Two demos cannot use the same folder at once; the second leaves it alone.
    """
    with demo_folder(tmp_path):
        (tmp_path / "data").write_text("first")
        with pytest.raises(DemoRunsError, match="is running in"), demo_folder(tmp_path):
            pass
        kept = (tmp_path / "data").read_text()

    assert kept == "first"


def test_a_folder_that_cannot_be_created_is_reported(tmp_path):
    """
    A file at that path gives one clear error, not a traceback.
    """
    file = tmp_path / "file"
    file.write_text("mine")

    with pytest.raises(StateFolderError, match="Not a directory"), demo_folder(file):
        pass

    assert file.read_text() == "mine"


def test_a_folder_that_cannot_be_read_is_reported(tmp_path, monkeypatch):
    """
    A folder that belongs to a different user gives one clear error as well.
    """

    def closed(_path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", closed)
    expected = pytest.raises(StateFolderError, match="Permission denied")

    with expected, demo_folder(tmp_path):
        pass


def test_a_demo_that_is_killed_at_once_leaves_a_demo_folder(tmp_path, monkeypatch):
    """
    The next demo takes the folder, because nothing was created in it before the mark.
    """
    folder = tmp_path / "demo"

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(own_stack, "_opened", killed)
        with pytest.raises(KeyboardInterrupt), demo_folder(folder):
            pass
    with demo_folder(folder) as stack:
        names = [path.name for path in stack.state.root.iterdir()]

    assert names == [MARK]


def test_a_mark_that_cannot_be_written_gives_one_clear_error(tmp_path):
    """
    A different user, such as root, may have run the demo in this folder.
    """
    (tmp_path / MARK).mkdir()
    expected = pytest.raises(StateFolderError, match="Is a directory")

    with expected, demo_folder(tmp_path):
        pass


def test_a_result_path_that_cannot_be_written_is_refused_early(tmp_path, monkeypatch):
    """
    It must not fail after the whole run, as if a sink differed.
    """
    monkeypatch.setattr("towpath.deploy.demo.run.run_demo", lambda *_: 0)
    with pytest.raises(UsageError, match="there is no folder"):
        demo_platform(json=tmp_path / "none" / "result.json", state=tmp_path)


def test_a_result_name_that_is_too_long_is_refused_early(tmp_path):
    """
    The error contains the system's reason.
    """
    with pytest.raises(UsageError, match="File name too long"):
        demo_platform(json=tmp_path / ("r" * 300), state=tmp_path)


@pytest.mark.parametrize("given", [{"keep": True}, {"orders": 50_000}])
def test_options_for_the_demos_own_platform_are_refused_when_joining(given, tmp_path):
    """
    A joined platform has its own orders, and continues to run when the demo ends.
    """
    with pytest.raises(UsageError, match="--keep and --orders"):
        demo_platform(join="http://orders", state=tmp_path, **given)
