"""Compare the coverage of members with their floors."""

import tomllib

from support.coverage_floors import ROOT, below, percent_by_member


def file(lines: int, statements: int, taken: int, branches: int):
    """Make a file's entry in a coverage report."""
    summary = {
        "covered_lines": lines,
        "num_statements": statements,
        "covered_branches": taken,
        "num_branches": branches,
    }
    return {"summary": summary}


def test_coverage_counts_lines_and_branches_of_all_files_of_a_member():
    """
    A large file counts more than a small one; members are counted separately.
    """
    report = {
        "files": {
            "relay/src/towpath/relay/a.py": file(8, 10, 1, 2),
            "relay/src/towpath/relay/b.py": file(1, 4, 2, 4),
            "sinks/src/towpath/sinks/a.py": file(5, 5, 0, 0),
        }
    }

    assert {"relay": 60.0, "sinks": 100.0} == percent_by_member(report)


def test_a_member_below_its_coverage_floor_is_reported():
    """
    A member that was not measured at all is below any floor.
    """
    floors = {"relay": 60, "sinks": 90.5, "outbox": 1}

    assert ["sinks", "outbox"] == below({"relay": 60.0, "sinks": 90.0}, floors)


def test_every_member_has_a_coverage_floor():
    """
    A new member must not be forgotten.
    """
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    members = {path.parent.name for path in ROOT.glob("*/src")}

    assert members == settings["tool"]["towpath"]["coverage"].keys()
