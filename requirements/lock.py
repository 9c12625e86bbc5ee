"""
Make the locks: ``build.lock``, ``run.lock``, ``dev.lock`` and ``lock.lock``.

Dependencies are read from the members' own files. What is locked stays locked unless
``--upgrade`` is said. The locks hold for every Python that the members allow, and name
neither this machine nor an address.
"""
# A script of its own, run by make: it prints, starts programs and is in no package.
# ruff: noqa: INP001, S603, T201, TID251

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLONE = HERE.parent
OLDEST_PYTHON = "3.11"


def main() -> int:
    """Make every lock, each one a constraint of the next."""
    uv = find_uv()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run.in")
        run.write_text("\n".join(member_dependencies()) + "\n", encoding="utf-8")
        compile_lock(uv, "lock.lock", [HERE / "lock.in"])
        compile_lock(uv, "build.lock", [HERE / "build.in"], "--allow-unsafe")
        compile_lock(uv, "run.lock", [run])
        compile_lock(
            *(uv, "dev.lock", [run, HERE / "dev.in"]),
            *("--constraints", str(HERE / "run.lock")),
        )
    return 0


def member_dependencies() -> list[str]:
    """Return what the members depend on, each other left out."""
    found = set()
    for path in sorted(CLONE.glob("*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        found.update(d for d in project["dependencies"] if not d.startswith("towpath-"))
    return sorted(found)


def compile_lock(uv: str, name: str, sources: list[Path], *options: str) -> None:
    """Make one lock; what it holds already is preferred."""
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
    """Return uv, installed by its own lock where this is run for the first time."""
    tools = CLONE / ".towpath" / "tools"
    program = tools / "bin" / "uv"
    if not program.exists():
        lock = HERE / "lock.lock"
        wanted = ["--require-hashes", "-r", str(lock)] if lock.exists() else ["uv"]
        subprocess.run([sys.executable, "-m", "venv", str(tools)], check=True)
        pip = [str(tools / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        environ = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        subprocess.run([*pip, *wanted], check=True, env=environ)
    return str(program)


if __name__ == "__main__":
    sys.exit(main())
