"""Which Java is taken, and the wrapper that Spark gets."""

import subprocess
from pathlib import Path

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
    A JAVA_HOME with release 21 is taken as it is.
    """
    own = _runtime(tmp_path / "own", "21.0.9")

    assert own == java.home({"JAVA_HOME": str(own)})


def test_another_release_of_the_users_is_passed_over(tmp_path: Path) -> None:
    """
    Spark does not run on 25 nor OpenSearch on 17, so the packaged 21 is taken.
    """
    own = _runtime(tmp_path / "own", "25.0.1")

    chosen = java.home({"JAVA_HOME": str(own)})

    assert own != chosen
    assert java.release(chosen) == java.RELEASE


def test_a_runtime_with_the_module_needs_no_wrapper(tmp_path: Path) -> None:
    """
    A full JDK is given to Spark directly.
    """
    own = _runtime(tmp_path / "own", "21.0.9", "java.base jdk.incubator.vector")

    assert own == java.spark_home(tmp_path / "wrapper", {"JAVA_HOME": str(own)})


def test_the_wrapper_drops_one_request_and_keeps_the_rest(tmp_path: Path) -> None:
    """
    Only the request for the missing module is left out; order and blanks are kept.
    """
    own = _runtime(tmp_path / "o w'n", "21.0.9")
    home = java.spark_home(tmp_path / "wrapper", {"JAVA_HOME": str(own)})
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "Main"]

    done = subprocess.run(
        [str(home / "bin" / "java"), *words], capture_output=True, text=True, check=True
    )

    assert done.stdout == "-cp|a b||Main|"
