"""Flink's SQL client and a cluster in its process: an unmodified reader of topics."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from towpath.sinks.jars import fetch, java, store

MAIN = "org.apache.flink.table.client.SqlClient"
FAILED = "[ERROR]"

# The packages that Flink's own start script opens, by their modules.
OPENED = {
    "java.base": (
        *("java.lang", "java.lang.reflect", "java.net", "java.io", "java.nio"),
        *("java.text", "java.time", "java.util", "java.util.concurrent"),
        *("java.util.concurrent.atomic", "java.util.concurrent.locks", "sun.nio.ch"),
    ),
}
EXPORTED = {
    "java.base": ("sun.net.util",),
    "java.management": ("sun.management",),
    "java.rmi": ("sun.rmi.registry",),
    "java.security.jgss": ("sun.security.krb5",),
}
SETTINGS = """\
execution.target: local
parallelism.default: 1
"""


@contextlib.contextmanager
def flink(folder: Path, script: str) -> Iterator[Path]:
    """
    Run a script of Flink SQL for the block; the last statement may run indefinitely.

    Args:
        folder: The folder for its files.
        script: Statements, each with its semicolon.

    Yields:
        The file with its output, which contains ``FAILED`` after an error.
    """
    (folder / "config.yaml").write_text(SETTINGS, encoding="utf-8")
    (folder / "script.sql").write_text(script, encoding="utf-8")
    log = folder / "flink.log"
    environ = os.environ | {"FLINK_CONF_DIR": str(folder)}  # noqa: TID251 - a root
    command = [*_command(), "embedded", "-f", str(folder / "script.sql")]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield log
        finally:
            process.kill()
            process.wait()


def _command() -> tuple[str, ...]:
    environ = os.environ  # noqa: TID251 - a root
    jars = store.read_lock(store.LOCK.with_name("flink.lock"))
    fetch.ensure(print, environ, jars)
    paths = [store.folder(environ) / jar.use / jar.file for jar in jars]
    return (
        str(java.home(environ) / "bin" / "java"),
        "-Xmx1g",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        *_access("opens", OPENED),
        *_access("exports", EXPORTED),
        *("-cp", ":".join(map(str, paths)), MAIN),
    )


def _access(kind: str, packages: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for module, names in packages.items():
        for name in names:
            yield f"--add-{kind}={module}/{name}=ALL-UNNAMED"
