"""
Kafka Connect with Debezium's connector, fetched only when somebody asks for it.

The archives have a lock of their own, so that nobody else fetches them, and lie in the
store beside the others. They are named one by one: whatever else lies there is left
out.
"""

import os
from pathlib import Path
from typing import Final

from towpath.deploy import java
from towpath.deploy.jars import fetch, lock, store

LOCK: Final = lock.LOCK.with_name("debezium.lock")

# What Kafka's own script gives Connect, and a log of what went wrong.
_FLAGS: Final = (
    "-Xms256m",
    "-Xmx2g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_MAIN: Final = "org.apache.kafka.connect.cli.ConnectStandalone"


def words(tell: fetch.Tell) -> tuple[str, ...]:
    """
    Return the words that run Connect standalone; its two files are to follow.

    Raises:
        JarsError: An archive could not be had.
    """
    environ = os.environ  # noqa: TID251 - a root
    jars = lock.read(LOCK)
    fetch.ensure(tell, environ, jars)
    paths = [store.folder(environ) / jar.use / jar.file for jar in jars]
    return command(java.home(environ), paths)


def command(java_home: Path, paths: list[Path]) -> tuple[str, ...]:
    """Return the words that run Connect from these archives."""
    class_path = ":".join(str(path) for path in paths)
    return (str(java_home / "bin" / "java"), *_FLAGS, "-cp", class_path, _MAIN)
