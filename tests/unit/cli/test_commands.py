"""The commands of installed packages, and those of missing packages."""

import tomllib
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path

import pytest

from towpath.cli import app as root

ROOT = Path(__file__).parents[3]


def points(*names: str) -> list[EntryPoint]:
    """Return the installed entry points of some packages."""
    found = entry_points(group=root.GROUP)
    return [p for p in found if p.dist is not None and p.dist.name in names]


def shown(*packages: str) -> set[str]:
    """Return the commands that help would show with only these packages."""
    return {name for name in root.build(points(*packages)) if name[0] != "-"}


def test_each_package_brings_its_own_commands() -> None:
    """
    The relay alone has its commands, and the sinks alone have theirs.
    """
    alone = root.build(points("towpath-sinks"))["sink"]

    assert set() == shown()
    assert {"relay", "outbox"} == shown("towpath-relay")
    assert {"sink", "verify", "wait", "dead-letters", "schema"} == shown(
        "towpath-sinks"
    )
    assert {"schema"} == shown("towpath-outbox")
    assert {"run", "check", "fetch-jars"} == {n for n in alone if n[0] != "-"}


@pytest.mark.parametrize(
    ("args", "package"),
    [
        (["relay", "run"], "towpath-relay"),
        (["sink", "add", "block.toml"], "towpath-deploy"),
        (["verify", "cache"], "towpath-sinks"),
    ],
)
def test_a_missing_command_names_its_package(
    args: list[str],
    package: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    A command of a package that is not installed exits with 2 and names the package.
    """
    sinks = points("towpath-sinks") if package == "towpath-deploy" else []
    monkeypatch.setattr(root, "app", root.build(sinks))

    assert 2 == root.run(args)
    assert f"pip install {package}" in capsys.readouterr().err


def test_an_installed_command_is_not_missing() -> None:
    """
    Options, values and unknown commands are left to the command line itself.
    """
    for args in (["relay"], ["sink", "run", "x"], ["nonsense"], ["--help"], []):
        assert None is root.missing_command(args, root.app)


def test_the_known_commands_are_those_that_the_members_declare() -> None:
    """
    Every declared command is known with its package and a help text; no others are.
    """
    declared = set()
    for path in ROOT.glob("*/pyproject.toml"):
        project = tomllib.loads(path.read_text("utf-8"))["project"]
        commands = project.get("entry-points", {}).get(root.GROUP, {})
        declared |= {(name, project["name"]) for name in commands}

    assert declared == {(known.name, known.package) for known in root.KNOWN}
    assert all(known.help for known in root.KNOWN)


def test_another_package_adds_a_command() -> None:
    """
    A command of a foreign package comes last, at the top level or in a group.
    """
    own = [
        EntryPoint("mine", "towpath.cli.options:state_folder", root.GROUP),
        EntryPoint("sink.mine", "towpath.cli.options:state_folder", root.GROUP),
    ]
    app = root.build([*own, *points("towpath-sinks")])

    assert "mine" == [name for name in app if name[0] != "-"][-1]
    assert "mine" == [name for name in app["sink"] if name[0] != "-"][-1]


@pytest.mark.parametrize(
    ("args", "suggestion"), [(["staus"], "status"), (["sink", "lst"], "list")]
)
def test_an_unknown_command_imports_no_command(
    args: list[str],
    suggestion: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    The suggested name comes from the entry points, so a typo is reported at once.
    """
    names = ("status", "sink.list", "wait")
    absent = [EntryPoint(name, "towpath.absent:run", root.GROUP) for name in names]
    monkeypatch.setattr(root, "app", root.build(absent))

    assert 2 == root.run(args)
    assert f'Did you mean "{suggestion}"?' in capsys.readouterr().err


def test_all_packages_have_the_version_of_one_file() -> None:
    """
    No member has a version of its own.
    """
    wanted = (ROOT / "VERSION").read_text("utf-8").strip()
    names = {f"towpath-{path.parent.name}" for path in ROOT.glob("*/pyproject.toml")}

    assert {wanted} == {version(name) for name in names}


def test_the_changelog_begins_with_the_version() -> None:
    """
    The newest heading is the version in the file.
    """
    wanted = (ROOT / "VERSION").read_text("utf-8").strip()
    lines = (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()
    headings = [line for line in lines if line.startswith("## ")]

    assert headings[0] in {f"## {wanted} (unreleased)", f"## {wanted}"}
    assert "## 0.1.0" in headings
