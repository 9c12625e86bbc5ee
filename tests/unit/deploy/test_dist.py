"""
The script that builds the packages: its failures, and the folder that it replaces.
"""

import importlib.util
import subprocess
import sys

import pytest

from towpath.sinks.jars import store


@pytest.fixture
def dist():
    """Load the script, which does not belong to a package."""
    path = store.CLONE / "deploy" / "dist.py"
    spec = importlib.util.spec_from_file_location("towpath_dist", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_output_of_a_failing_program_is_shown(dist, capsys, tmp_path):
    """
    For a member that cannot be built, more than an exit code is reported.
    """
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")

    with pytest.raises(subprocess.CalledProcessError):
        dist.build(tmp_path, tmp_path, "0", ("wheel",))

    assert "project.version" in capsys.readouterr().err
    dist.run([sys.executable, "-c", "print('quiet')"])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", [".", "notes.txt"])
def test_a_folder_with_other_files_is_not_replaced(name, dist, tmp_path, capsys):
    """
    The new folder of packages replaces the previous one, but no other folder.
    """
    (tmp_path / "notes.txt").touch()
    with pytest.raises(SystemExit):
        dist.main([str(tmp_path / name)])

    assert (tmp_path / "notes.txt").exists()
    assert "is not a folder of packages" in capsys.readouterr().err
    (tmp_path / "notes.txt").rename(tmp_path / "towpath-x.whl")
    assert dist.holds_packages(tmp_path)


def test_a_folder_of_clones_is_not_replaced(dist, tmp_path):
    """
    The name of a clone in the folder begins like a package's.
    """
    (tmp_path / "towpath").mkdir()

    assert not dist.holds_packages(tmp_path)
