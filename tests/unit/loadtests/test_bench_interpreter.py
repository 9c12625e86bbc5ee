"""Which Python make uses, and the description of its build."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from towpath.loadtests.bench import interpreter
from towpath.sinks.jars import store

SCRIPT = store.CLONE / "deploy" / "find_python.sh"
MODULE = store.CLONE / "loadtests/src/towpath/loadtests/bench/interpreter.py"


def write_script(folder: Path, name: str, code: str) -> None:
    """Write an executable shell script."""
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(f"#!/bin/sh\n{code}\n", encoding="utf-8")
    script.chmod(0o755)


def found(*folders: Path) -> str:
    """Run the script with only these folders on the path."""
    for tool in ("dirname", "sort", "head", "cut"):
        write_script(folders[0], tool, f'PATH=/usr/bin:/bin exec {tool} "$@"')
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT)],
        env={"PATH": ":".join(map(str, folders))},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (("1113 /b/new", "1011 /a/x"), "/b/new"),
        (("1013 /a/new-without-pgo", "1111 /b/old"), "/b/old"),
        (("0113 /a/without-headers", "1011 /b/with"), "/b/with"),
        (("1111 /a/first", "1111 /b/second"), "/a/first"),
        (("1111 /a/with a space", "1011 /b/x"), "/a/with a space"),
    ],
)
def test_make_uses_the_python_of_the_highest_rank(tmp_path, ranks, expected):
    """
    Header files outweigh PGO, PGO the version, and the version the order in the path.
    """
    for folder, rank in zip("ab", ranks, strict=True):
        write_script(tmp_path / folder, "python3", f'echo "{rank}"')

    assert expected == found(tmp_path / "a", tmp_path / "b")


def test_a_python_that_fails_is_skipped(tmp_path):
    """
    Pyenv's commands for versions that are not selected fail with a message.
    """
    write_script(tmp_path / "a", "python3.13", "echo 1113 /a/python3.13; exit 127")
    write_script(tmp_path / "b", "python3.11", 'echo "1011 /b/python3.11"')

    assert "/b/python3.11" == found(tmp_path / "a", tmp_path / "b")


def test_without_a_suitable_python_nothing_is_printed(tmp_path):
    """
    Make then lists the supported versions.
    """
    write_script(tmp_path / "a", "python3", "echo 1111 /a/python3; exit 1")

    assert "" == found(tmp_path / "a")


@pytest.mark.parametrize(
    ("options", "schemes", "expected"),
    [
        ("'--enable-optimizations' '--with-lto'", ("posix_prefix",), "with"),
        ("'--enable-shared'", ("deb_system", "posix_prefix"), "with"),
        ("'--enable-shared'", ("posix_prefix",), "without"),
        (None, ("posix_prefix",), "without"),
    ],
)
def test_the_build_is_recognized_by_its_options_or_by_debian(
    monkeypatch, options, schemes, expected
):
    """
    Debian's own Python has PGO, but lacks the option that would show it.
    """
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _: options)
    monkeypatch.setattr(sysconfig, "get_scheme_names", lambda: schemes)

    assert interpreter.describe().endswith(f" {expected} PGO")


@pytest.mark.parametrize(
    ("version", "expected"),
    [((3, 10), False), ((3, 11), True), ((3, 13), True), ((3, 14), False)],
)
def test_only_tested_versions_are_supported(monkeypatch, version, expected):
    """
    The bounds are those of the locks.
    """
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))

    assert expected == interpreter.is_supported()


def test_a_python_without_venv_is_not_supported(monkeypatch):
    """
    Debian has ensurepip in a separate package.
    """
    monkeypatch.setattr(interpreter.importlib.util, "find_spec", lambda _: None)

    assert not interpreter.is_supported()


def test_the_rank_of_this_python_names_its_base():
    """
    A set-up deletes a broken environment, so it creates the next one from the base.
    """
    done = subprocess.run(
        [sys.executable, "-I", str(MODULE)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.defpath},
    )
    rank, path = done.stdout.removesuffix("\n").split(" ", 1)

    assert (4, f"{sys.version_info[1]}", sys.base_prefix) == (
        *(len(rank), rank[2:]),
        str(Path(path).parents[1]),
    )


def test_make_accepts_a_python_in_a_folder_with_a_space(tmp_path):
    """
    The recipes quote its path.
    """
    link = tmp_path / "a b" / "python3"
    link.parent.mkdir()
    link.symlink_to(Path(sys.base_prefix, "bin", "python3"))

    done = subprocess.run(
        ["make", "--no-print-directory", "python", f"PYTHON={link}"],
        cwd=store.CLONE,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stderr)


def test_an_unsupported_version_prints_no_rank(monkeypatch, capsys):
    """
    The exit code shows make that this Python cannot be used.
    """
    monkeypatch.setattr(interpreter, "is_supported", lambda: False)

    assert (1, "") == (interpreter.main(), capsys.readouterr().out)
