"""An object store for one test: an S3-compatible server backed by a folder."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from support.waiting import until
from towpath.deploy.local import ports
from towpath.deploy.local.ports import LOOPBACK
from towpath.sinks.jars import java, store

BUCKET = "lake"


def connector() -> Path:
    """Return the JAR that Spark needs to use an object store."""
    return _archive("s3", "iceberg-aws-bundle")


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Provide the address of a server with one empty bucket."""
    given = ports.free_ports_for(("http", "https"))
    address = f"http://{LOOPBACK}:{given['http']}"
    own = "com.adobe.testing.s3mock"
    options = {
        f"{own}.http-port": given["http"],
        f"{own}.domain.root": folder,
        f"{own}.domain.initial-buckets": BUCKET,
        "server.port": given["https"],
        "logging.level.root": "WARN",
    }
    # It runs only for seconds: the C2 compiler would cost more than it saves.
    quick = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    command = [str(java.home() / "bin" / "java"), *quick, "-jar"]
    command += [str(_archive("objectstore", "s3mock"))]
    command += [f"--{name}={value}" for name, value in options.items()]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until(lambda: _serves(f"{address}/{BUCKET}"), "the object store serves")
        yield address
    finally:
        server.terminate()
        server.wait()


def _archive(use: str, name: str) -> Path:
    folder = store.folder()
    jars = store.read_lock(store.LOCK.with_name(f"{use}.lock"))
    (jar,) = (jar for jar in jars if jar.parts[1] == name)
    assert store.is_complete(jar, folder), (
        f"{jar.file} is missing: make test fetches it"
    )
    return folder / jar.use / jar.file


def _serves(url: str) -> bool:
    try:
        return requests.head(url, timeout=10).ok
    except requests.RequestException:
        return False
