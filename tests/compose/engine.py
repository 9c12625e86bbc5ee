"""
A Docker engine with Compose v2: the machine's, or one that this run starts.

Starting one needs root and the programs of Debian's packages ``docker.io``,
``iptables`` and ``debootstrap``. If the client lacks Compose, it is built from source
with the Go that the development setup installs.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from support.waiting import until

CLONE = Path(__file__).resolve().parents[2]
GO = str(Path(sys.executable).with_name("go"))
FOLDER = CLONE / ".towpath" / "compose-test"
_INSTALL = "apt-get install --no-install-recommends docker.io iptables debootstrap"
GO_SETTINGS = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}


class _Plugin(NamedTuple):
    """
    A plugin of the Docker client.

    Attributes:
        module: Its Go module, with the version.
        program: The path of its program in the module.
        variable: The variable in the program that a build sets to the version.
    """

    module: str
    program: str
    variable: str


_PLUGINS = {
    "compose": _Plugin(
        "github.com/docker/compose/v2@v2.40.3",
        "./cmd",
        "github.com/docker/compose/v2/internal.Version",
    ),
    # Compose queries its version, and rejects an unknown one.
    "buildx": _Plugin(
        "github.com/docker/buildx@v0.38.2",
        "./cmd/buildx",
        "github.com/docker/buildx/version.Version",
    ),
}
_UNKNOWN = "unknown"


@contextmanager
def engine() -> Iterator[None]:
    """Make ``docker`` and ``docker compose`` work in this block."""
    if _answers():
        _require_plugins()
        yield
        return
    assert shutil.which("dockerd") is not None, f"there is no Docker engine: {_INSTALL}"
    assert os.geteuid() == 0, "only root can start a Docker engine for this run"
    FOLDER.mkdir(parents=True, exist_ok=True)
    socket = f"unix://{FOLDER}/docker.sock"
    command = ["dockerd", "--data-root", f"{FOLDER}/data", "--host", socket]
    command += ["--exec-root", f"{FOLDER}/exec", "--pidfile", f"{FOLDER}/docker.pid"]
    with (FOLDER / "dockerd.log").open("wb") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=log)
    os.environ["DOCKER_HOST"] = socket  # noqa: TID251 - every command below
    try:
        until(_answers, "the engine answers")
        _require_plugins()
        yield
    finally:
        daemon.terminate()
        daemon.wait(60)


def docker(*arguments: str, within_s: float = 600.0) -> str:
    """Run a docker command; return its output."""
    done = attempt(*arguments, within_s=within_s)
    assert done.returncode == 0, f"docker {arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def attempt(
    *arguments: str, within_s: float = 600.0
) -> subprocess.CompletedProcess[str]:
    """Run a docker command; return its result, even if it fails."""
    return subprocess.run(
        ["docker", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=within_s,
        cwd=CLONE,
    )


def inspect(name: str) -> dict:
    """Return Docker's description of a container or an image."""
    return json.loads(docker("inspect", name))[0]


def _answers() -> bool:
    is_there = shutil.which("docker") is not None
    return is_there and attempt("info", within_s=60).returncode == 0


def _require_plugins() -> None:
    folder = Path.home() / ".docker" / "cli-plugins"
    for name, plugin in _PLUGINS.items():
        found = attempt(name, "version")
        if found.returncode != 0 or _UNKNOWN in found.stdout:
            _build(folder / f"docker-{name}", plugin)
        assert _UNKNOWN not in docker(name, "version")


def _build(program: Path, plugin: _Plugin) -> None:
    """
    Build a program as its own main module, so that its ``replace`` directives apply.
    """
    found = subprocess.run(
        [GO, "mod", "download", "-json", plugin.module],
        capture_output=True,
        check=True,
    )
    source = FOLDER / program.name
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(json.loads(found.stdout)["Dir"], source)
    subprocess.run(["chmod", "-R", "u+w", str(source)], check=True)
    program.parent.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, **GO_SETTINGS}  # noqa: TID251 - Go's own
    version = f"-X {plugin.variable}={plugin.module.partition('@')[2]}"
    command = [GO, "build", "-trimpath", "-ldflags", version]
    command += ["-o", str(program), plugin.program]
    subprocess.run(command, cwd=source, env=environ, check=True)
    shutil.rmtree(source)
