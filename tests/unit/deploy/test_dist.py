"""The script that builds the packages: the reason of a failure is printed."""

import importlib.util
import subprocess
import sys

import pytest

from towpath.sinks.jars import store


def test_the_output_of_a_program_that_fails_is_shown(capsys, tmp_path):
    """
    A member that cannot be built is not only an exit code.
    """
    path = store.CLONE / "deploy" / "dist.py"
    spec = importlib.util.spec_from_file_location("towpath_dist", path)
    dist = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dist)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")

    with pytest.raises(subprocess.CalledProcessError):
        dist.build(tmp_path, tmp_path, "0", ("wheel",))

    assert "project.version" in capsys.readouterr().err
    dist.run([sys.executable, "-c", "print('quiet')"])
    assert capsys.readouterr() == ("", "")
