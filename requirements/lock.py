"""
Compile the locks in ``requirements``, its ``images/`` and its ``packages/``.

Dependencies are read from the members' ``pyproject.toml``. Locked versions are kept
unless ``--upgrade`` is given. The locks apply to every Python version that the members
allow, and contain no path of this machine and no index URL.
"""
# A standalone script for make: it prints, starts programs and is in no package.
# ruff: noqa: INP001, S603, T201, TID251

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CLONE = HERE.parent
OLDEST_PYTHON = "3.11"
# The members that each image installs, with their extras and dependencies.
IMAGES = {
    "relay": ["relay[tracing]", "relay[lineage]"],
    "services": ["services[storefront]", "services[tracing]"],
    "sinks": ["sinks[java]", "sinks[tracing]", "sinks[lineage]"],
    "tools": ["deploy"],
}
# Libraries that applications install: their SBOMs list the contents of these locks.
PACKAGES = {"inbox": ["inbox"], "outbox": ["outbox"]}
# The tools do not start Spark, because sinks run in their own image. The storefront
# waits for sinks, and neither runs them nor reads a warehouse.
LEFT_OUT = {
    "tools": ("pyspark", "pandas"),
    "services": ("pyspark", "pandas", "pyiceberg"),
}


def main() -> int:
    """Compile every lock; earlier locks constrain later ones."""
    uv = find_uv()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run.in")
        write_requirements(run, dependencies())
        compile_lock(uv, "lock.lock", [HERE / "lock.in"])
        compile_lock(uv, "build.lock", [HERE / "build.in"], "--allow-unsafe")
        compile_lock(
            *(uv, "compile.lock", [HERE / "compile.in"], "--allow-unsafe"),
            *("--constraints", str(HERE / "build.lock")),
        )
        compile_lock(uv, "run.lock", [run])
        compile_lock(
            *(uv, "dev.lock", [run, HERE / "dev.in"]),
            *("--constraints", str(HERE / "run.lock")),
            *("--constraints", str(HERE / "compile.lock")),
        )
        for subfolder, locked in (("images", IMAGES), ("packages", PACKAGES)):
            for name, members in locked.items():
                requirements = Path(folder, f"{name}.in")
                left_out = LEFT_OUT.get(name, ())
                needed = dependencies_of(members)
                kept = {text for text in needed if not text.startswith(left_out)}
                write_requirements(requirements, kept)
                compile_lock(
                    *(uv, f"{subfolder}/{name}.lock", [requirements]),
                    *("--constraints", str(HERE / "run.lock")),
                )
    return 0


def dependencies() -> set[str]:
    """Return the dependencies of all members and their extras, except other members."""
    found: set[str] = set()
    for path in sorted(CLONE.glob("*/pyproject.toml")):
        project = project_of(path.parent.name)
        extras = project.get("optional-dependencies", {}).values()
        found.update(project["dependencies"], *extras)
    return {text for text in found if not text.startswith("towpath-")}


def dependencies_of(members: list[str]) -> set[str]:
    """Return the dependencies of members, and of the members that these need."""
    found: set[str] = set()
    for member in members:
        # A member with an extra is written ``sinks[java]``.
        name, _, extra = member.rstrip("]").partition("[")
        project = project_of(name)
        needed = list(project["dependencies"])
        needed += project["optional-dependencies"][extra] if extra else []
        others = [text for text in needed if text.startswith("towpath-")]
        found.update(text for text in needed if text not in others)
        found |= dependencies_of([text.removeprefix("towpath-") for text in others])
    return found


def project_of(member: str) -> dict[str, Any]:
    """Return the ``[project]`` table of a member's ``pyproject.toml``."""
    text = (CLONE / member / "pyproject.toml").read_text(encoding="utf-8")
    project: dict[str, Any] = tomllib.loads(text)["project"]
    return project


def write_requirements(path: Path, requirements: set[str]) -> None:
    """Write requirements, one per line."""
    path.write_text("\n".join(sorted(requirements)) + "\n", encoding="utf-8")


def compile_lock(uv: str, name: str, sources: list[Path], *options: str) -> None:
    """Compile one lock; versions that it already contains are preferred."""
    print(f"{name} ...", flush=True)
    subprocess.run(
        [
            *(uv, "pip", "compile", "--quiet", "--universal", "--generate-hashes"),
            *("--no-emit-index-url", "--no-emit-find-links", "--no-annotate"),
            *(
                "--python-version",
                OLDEST_PYTHON,
                "--custom-compile-command",
                "make lock",
            ),
            *("--output-file", str(HERE / name), *options),
            *(["--upgrade"] if "--upgrade" in sys.argv[1:] else []),
            *map(str, sources),
        ],
        check=True,
    )


def find_uv() -> str:
    """Return the path of uv; the first run installs it from its own lock."""
    tools = CLONE / ".towpath" / "tools"
    program = tools / "bin" / "uv"
    if not program.exists():
        lock = HERE / "lock.lock"
        source = ["--require-hashes", "-r", str(lock)] if lock.exists() else ["uv"]
        subprocess.run([sys.executable, "-m", "venv", str(tools)], check=True)
        pip = [str(tools / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        environ = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        subprocess.run([*pip, *source], check=True, env=environ)
    return str(program)


if __name__ == "__main__":
    sys.exit(main())
