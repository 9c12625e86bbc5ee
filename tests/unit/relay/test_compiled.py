"""The choice between compiled modules and Python, all or none."""

import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from towpath.deploy.doctor.machine import describe_code
from towpath.deploy.local.own_stack import environment
from towpath.relay import loop
from towpath.relay.cli import relay as command
from towpath.relay.commands import compiled
from towpath.relay.commands.compiled import Code
from towpath.schemas.failure import ConfigurationError


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a source file in a separate package."""
    package = tmp_path / "made_up"
    package.mkdir()
    (package / "__init__.py").touch()
    file = package / "rows.py"
    file.write_text("LIMIT = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(compiled, "_SOURCES", ("made_up",))
    return file


def test_compiled_modules_of_an_edited_source_are_not_used(source, tmp_path):
    """
    After one letter is changed or a file is added, the compiled modules are not found.
    """
    before = compiled.folder(tmp_path)
    before.mkdir()
    found = [compiled.available({}, tmp_path)]
    source.write_text("LIMIT = 2\n", encoding="utf-8")
    found.append(compiled.available({}, tmp_path))
    source.write_text("LIMIT = 1\n", encoding="utf-8")
    found.append(compiled.available({}, tmp_path))
    source.with_name("more.py").touch()
    found.append(compiled.available({}, tmp_path))
    source.with_name("more.py").unlink()
    source.with_suffix(".c").touch()
    found.append(compiled.available({}, tmp_path))

    assert [each is Code.COMPILED for each in found] == [
        True,
        False,
        True,
        False,
        False,
    ]


def test_a_different_interpreter_has_different_compiled_modules(
    source, tmp_path, monkeypatch
):
    """
    A different version or build of Python does not find modules compiled for this one.
    """
    before = compiled.folder(tmp_path)
    monkeypatch.setattr(sys, "version", f"{sys.version} of another build")

    assert source.exists()
    assert before != compiled.folder(tmp_path)


def test_the_variable_turns_compiled_modules_off(source, tmp_path):
    """
    With off, the Python modules run although compiled ones exist; on is the default.
    """
    compiled.folder(tmp_path).mkdir()
    variables = ({}, {compiled.VARIABLE: "on"}, {compiled.VARIABLE: "off"})
    found = [compiled.available(each, tmp_path) for each in variables]

    assert source.exists()
    assert found == [Code.COMPILED, Code.COMPILED, Code.PYTHON]


def test_an_invalid_value_of_the_variable_is_refused(tmp_path):
    """
    The message names the variable, its values, and the given value.
    """
    given = {compiled.VARIABLE: "yes"}

    with pytest.raises(ConfigurationError, match="must be on or off, not 'yes'"):
        compiled.import_modules(given, tmp_path)


def test_compiled_and_python_modules_are_never_mixed(source, tmp_path, monkeypatch):
    """
    If a process has already imported one module as Python, the rest are Python, too.
    """
    file = compiled.folder(tmp_path) / f"towpath/relay/loop{EXTENSION_SUFFIXES[0]}"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no library")
    # The parent's attribute is restored, too.
    monkeypatch.setattr(sys.modules["towpath.relay"], "loop", loop)
    monkeypatch.delitem(sys.modules, "towpath.relay.loop")
    compiled.import_modules({}, tmp_path)

    assert source.exists()
    assert "towpath.relay.loop" not in sys.modules
    assert compiled.running() is Code.PYTHON


def test_a_module_that_was_not_compiled_is_imported_as_usual(tmp_path):
    """
    The finder finds only files in its own folder.
    """
    suffix = EXTENSION_SUFFIXES[0]
    (tmp_path / f"there{suffix}").touch()
    finder = compiled._Finder(tmp_path)
    there = finder.find_spec("there", None)

    assert there is not None
    assert there.origin == str(tmp_path / f"there{suffix}")
    assert finder.find_spec("absent", None) is None


def test_the_relay_chooses_the_code_before_it_imports_the_modules(monkeypatch):
    """
    ``towpath relay run`` installs compiled modules before anything imports them.
    """

    class ChosenError(Exception):
        pass

    def choose(environ):
        assert environ[compiled.VARIABLE] == "off"
        raise ChosenError

    monkeypatch.setenv(compiled.VARIABLE, "off")
    monkeypatch.setattr(compiled, "import_modules", choose)
    monkeypatch.delitem(sys.modules, "towpath.relay.__main__", raising=False)

    with pytest.raises(ChosenError):
        command.run()

    assert "towpath.relay.__main__" not in sys.modules


def test_the_relay_does_not_import_rich():
    """
    A running relay draws nothing: rich would cost 11 MB, and time at each start.
    """
    code = (
        "import sys; from towpath.relay.cli.relay import import_run; import_run()"
        "; print([name for name in sys.modules if name.startswith('rich')])"
        "; import rich.console"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert "[]" == done.stdout.strip()


def test_the_doctor_names_the_interpreter_and_the_code():
    """
    One line names the build's profile and the form of the relay's modules.
    """
    line = describe_code({compiled.VARIABLE: "off"})
    version = ".".join(map(str, sys.version_info[:3]))

    assert line.startswith(f"Python {version} with")
    assert line.endswith(" PGO; the relay's hot modules: Python")


def test_processes_of_a_stack_inherit_the_choice(monkeypatch):
    """
    Only this one of the project's variables is inherited; a file cannot override it.
    """
    monkeypatch.setenv("TOWPATH_CONFIG", "elsewhere.toml")
    monkeypatch.setenv(compiled.VARIABLE, "off")
    variables = environment()

    assert variables[compiled.VARIABLE] == "off"
    assert "TOWPATH_CONFIG" not in variables
