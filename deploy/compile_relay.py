"""
Compile the relay's hot modules, written in Python or C, if there is a C compiler.

``deploy/setup.py run`` starts it with the environment's Python. It compiles the modules
that ``towpath.relay.commands.compiled`` lists, into the folder where the relay looks
for them, unless they are there already. If that fails, the script prints the reason in
one line, and the relay runs the same modules as Python. mypyc is installed from a
separate lock, at the version that the static checks use.
"""

import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from setup import pip_of, quietly

from towpath.relay.commands import compiled

CLONE = Path(__file__).resolve().parents[1]
LOCK = CLONE / "requirements" / "compile.lock"
MARK = "made-from"
LOG = CLONE / ".towpath" / "compile-relay.log"
IMPORTING = """
import sys, pathlib
from towpath.relay.commands import compiled
compiled.import_modules({}, pathlib.Path(sys.argv[1]))
sys.exit(compiled.running() is compiled.Code.PYTHON)
"""


class CannotCompileError(Exception):
    """The modules cannot be compiled here; the message is the reason."""


def main(home: Path) -> int:
    """Compile the modules, unless they are current or compiling is off; return 0."""
    if os.environ.get(compiled.VARIABLE) == "off":
        return 0
    folder = compiled.folder(home)
    wanted = LOCK.read_text(encoding="utf-8") + Path(__file__).read_text("utf-8")
    mark = folder / MARK
    if mark.exists() and mark.read_text(encoding="utf-8") == wanted:
        return 0
    try:
        check_compiler()
        print("compiling the relay's hot modules, about a minute", flush=True)
        install_compiler()
        compile_into(folder, wanted)
    except CannotCompileError as reason:
        print(f"the relay runs as Python, with more processor time per event: {reason}")
    return 0


def check_compiler() -> None:
    """
    Look for a C compiler, and for Python's header files.

    Raises:
        CannotCompileError: The compiler or a header file is missing.
    """
    words = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    compiler = shlex.split(words)[0]
    if shutil.which(compiler) is None:
        reason = f"there is no C compiler {compiler} (Debian: apt-get install gcc)"
        raise CannotCompileError(reason)
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        reason = f"there is no {header} (Debian: apt-get install python3-dev)"
        raise CannotCompileError(reason)


def install_compiler() -> None:
    """
    Install mypyc from its lock, unless the environment has it.

    Raises:
        CannotCompileError: pip failed.
    """
    options = ("--require-hashes", "--requirement", str(LOCK))
    run([*pip_of(Path(sys.prefix)), *options], "mypyc not installed")


def compile_into(folder: Path, wanted: str) -> None:
    """
    Compile the modules into a folder, which appears once all of them can be imported.

    Folders with modules that were compiled from other sources are removed.

    Raises:
        CannotCompileError: A module was not compiled, or could not be imported.
    """
    home = folder.parent
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        made = Path(scratch, folder.name)
        build = [sys.executable, str(Path(__file__)), "--build", scratch, str(made)]
        run(build, "a module was not compiled")
        importing = [sys.executable, "-c", IMPORTING, scratch]
        run(importing, "a compiled module cannot be imported")
        (made / MARK).write_text(wanted, encoding="utf-8")
        made.rename(folder)


def build(scratch: Path, made: Path) -> None:
    """Translate the modules to C and compile them; runs in a separate process."""
    from mypyc.build import mypycify  # noqa: PLC0415 - installed by this script
    from setuptools import Extension, setup  # noqa: PLC0415 - installed by this script

    os.chdir(CLONE)
    # Compiling with -O3 gains nothing over -O1 here, and takes twice as long.
    os.environ["CFLAGS"] = "-g0"
    source = CLONE / "relay" / "src"
    files = [f"{source}/{name.replace('.', '/')}.py" for name in compiled.BY_MYPYC]
    # CFLAGS replaces Python's own options, -O2 and -DNDEBUG among them.
    options_of_c = ["-O2", "-DNDEBUG"]
    from_c = [
        Extension(
            name,
            [f"{source}/{name.replace('.', '/')}.c"],
            extra_compile_args=options_of_c,
        )
        for name in compiled.FROM_C
    ]
    options = ("--config-file", "pyproject.toml", "--cache-dir", f"{scratch}/cache")
    setup(
        name="towpath-compiled",
        ext_modules=[
            *mypycify(
                [*options, *files],
                opt_level="1",
                debug_level="0",
                target_dir=f"{scratch}/c",
            ),
            *from_c,
        ],
        script_args=[
            *("--quiet", "build_ext", f"--parallel={os.cpu_count()}"),
            *("--build-temp", f"{scratch}/objects", "--build-lib", str(made)),
        ],
    )


def run(command: list[str], failure: str) -> None:
    """
    Run a program quietly; write its output to a log file if it fails.

    Raises:
        CannotCompileError: The program failed.
    """
    done = quietly(command)
    if done.returncode != 0:
        LOG.parent.mkdir(exist_ok=True)
        LOG.write_text(done.stdout, encoding="utf-8")
        reason = f"{failure} ({LOG})"
        raise CannotCompileError(reason)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--build"]:
        build(*map(Path, sys.argv[2:]))
    else:
        sys.exit(main(Path(*sys.argv[1:]) if sys.argv[1:] else compiled.HOME))
