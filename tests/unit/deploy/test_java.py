"""The choice of the Java runtime, and the wrapper that Spark gets."""

import subprocess
from pathlib import Path

import pytest

from towpath.sinks.jars import java


def _runtime(folder: Path, version: str, modules: str = "java.base") -> Path:
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    text = f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n'
    (folder / "release").write_text(text, encoding="utf-8")
    return folder


def test_the_users_java_21_is_preferred(tmp_path: Path) -> None:
    """
    A JAVA_HOME with release 21 is used unchanged.
    """
    own = _runtime(tmp_path / "own", "21.0.9")

    assert own == java.home({"JAVA_HOME": str(own)})


def test_a_different_java_release_of_the_user_is_ignored(tmp_path: Path) -> None:
    """
    Spark does not run on Java 25, nor OpenSearch on 17, so the packaged 21 is used.
    """
    own = _runtime(tmp_path / "own", "25.0.1")

    chosen = java.home({"JAVA_HOME": str(own)})

    assert own != chosen
    assert java.release(chosen) == java.RELEASE


def test_a_runtime_with_the_module_keeps_the_option(tmp_path: Path) -> None:
    """
    A full JDK gets everything that Spark's launcher requests.
    """
    own = _runtime(tmp_path / "own", "21.0.9", "java.base jdk.incubator.vector")
    args = ["--add-modules=jdk.incubator.vector", "Main"]

    assert _passed_on(tmp_path, own, args) == args


def test_the_wrapper_drops_one_option_and_keeps_the_rest(tmp_path: Path) -> None:
    """
    Only the request for the missing module is left out; order and spaces are kept.
    """
    own = _runtime(tmp_path / "o w'n", "21.0.9")
    args = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "Main"]

    assert _passed_on(tmp_path, own, args) == ["-cp", "a b", "", "Main"]


@pytest.mark.parametrize(
    ("requested", "wanted"),
    [
        ("/s/jars/slf4j-api-2.0.17.jar:/s/jars/*", "/s/jars/*"),
        ("/s/conf/:/s/jars/slf4j-api-2.0.17.jar:/s/jars/*:/x", "/s/conf/:/s/jars/*:/x"),
        ("/a b/x.jar:/s/jars/slf4j-api-2.jar:/s/jars/*", "/a b/x.jar:/s/jars/*"),
        ("/s/jars/slf4j-api-2.0.17.jar:/other", "/s/jars/slf4j-api-2.0.17.jar:/other"),
        ("/s/jars/*", "/s/jars/*"),
    ],
)
def test_the_wrapper_passes_no_jar_twice(
    tmp_path: Path, requested: str, wanted: str
) -> None:
    """
    Java does not use a class archive if an entry occurs twice in the class path.
    """
    own = _runtime(tmp_path / "own", "21.0.9")

    assert _passed_on(tmp_path, own, ["-cp", requested, "M"]) == ["-cp", wanted, "M"]


def test_the_wrapper_adds_a_recorded_archive(tmp_path: Path) -> None:
    """
    The archive is used as soon as it exists; Java's other flags follow it.
    """
    own = _runtime(tmp_path / "own", "21.0.9")
    archive = java.spark_classes(_environ(tmp_path, own))
    archive.parent.mkdir(parents=True)
    archive.touch()

    passed_on = _passed_on(tmp_path, own, ["-Xmx1g", "Main"])

    assert passed_on[0] == f"-XX:SharedArchiveFile={archive}"
    assert passed_on[-2:] == ["-Xmx1g", "Main"]


def test_a_class_archive_belongs_to_one_runtime(tmp_path: Path) -> None:
    """
    A runtime refuses another's archive, so the archive's name depends on the runtime.
    """
    one, other = (_runtime(tmp_path / name, "21.0.9") for name in ("one", "other"))
    for runtime in (one, other):
        (runtime / "lib").mkdir()
        (runtime / "lib" / "modules").touch()

    names = {
        java.spark_classes(_environ(tmp_path, own)).name for own in (one, one, other)
    }

    assert len(names) == 2


def _environ(tmp_path: Path, java_home: Path) -> dict[str, str]:
    return {"JAVA_HOME": str(java_home), "TOWPATH_JARS": str(tmp_path / "j a'rs")}


def _passed_on(tmp_path: Path, java_home: Path, args: list[str]) -> list[str]:
    """Return the arguments that the wrapper passes to Java."""
    home = java.spark_home(tmp_path / "wrapper", _environ(tmp_path, java_home))
    command = [str(home / "bin" / "java"), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.removesuffix("|").split("|")
