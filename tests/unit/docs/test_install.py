"""The installation page has valid files, and its units run existing commands."""

import configparser
import shlex

import pytest

from support.pages import DOCS, ROOT, blocks
from towpath.cli.app import app
from towpath.settings import load

PAGE = DOCS / "install.md"
UNITS = sorted((ROOT / "deploy/systemd").iterdir())


def test_the_files_of_the_page_have_no_mistakes(tmp_path):
    """
    Each TOML block is a complete configuration.
    """
    shown = [b for b in blocks(PAGE.read_text("utf-8")) if b.language == "toml"]
    for block in shown:
        path = tmp_path / "towpath.toml"
        path.write_text(block.text, encoding="utf-8")
        assert load(path, {}).sink

    assert 1 == len(shown)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_command_without_root(unit):
    """
    The command exists, the user is not root, and the process is always restarted.
    """
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str
    parsed.read(unit, encoding="utf-8")
    service = parsed["Service"]
    program, group, name, *_ = shlex.split(service["ExecStart"])

    assert "/opt/towpath/bin/towpath" == program
    assert name in app[group]
    assert ("towpath", "always") == (service["User"], service["Restart"])
    assert f"`deploy/systemd/{unit.name}`" in PAGE.read_text("utf-8")
