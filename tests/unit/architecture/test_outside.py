"""
Public names are compared with the texts in ``tests/data/outside``.

The command line, the configuration, errors, entry points, metrics and the names that
other people's packages import do not change by accident. Each is read the way its user
reads it, so that modules may move. Help sentences are not included, so they may be
improved. An intended change is made in the text too; the test prints the difference.
"""

import ast
import contextlib
import importlib
import inspect
import io
import json
import re
import runpy
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from difflib import unified_diff
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from cyclopts import App

from support.failures import failures
from towpath.schemas import telemetry
from towpath.settings import Settings

ROOT = Path(__file__).parents[3]
EXPECTED = ROOT / "tests/data/outside"
# Schema entries that do not affect the accepted values.
_SENTENCES = {"description", "title"}
_CODE_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def expected(name: str) -> list[str]:
    """Read the lines of one of the texts."""
    return (EXPECTED / name).read_text(encoding="utf-8").splitlines()


def check(name: str, found: Iterable[str]) -> None:
    """Fail with the difference if a text does not match the found lines."""
    files = (f"tests/data/outside/{name}", "what was found")
    difference = list(unified_diff(expected(name), list(found), *files, lineterm=""))
    assert [] == difference, "\n".join(difference)


def commands(app: App, *path: str) -> Iterator[str]:
    """List a command and its subcommands, each with its parameters."""
    names = [name for name in app if not name.startswith("-")]
    yield " ".join(path)
    # A command may have both options and subcommands.
    if not names or app.default_command is not None:
        for argument in app.assemble_argument_collection():
            choices = argument.get_choices()
            # A group of options is one of our classes, whose name does not matter to
            # users.
            types = [] if argument.names == ("*",) else [_type(argument)]
            default = argument.field_info.default
            facts = [
                " ".join(argument.names),
                *(["required"] if argument.required else []),
                *([f"one of {', '.join(choices)}"] if choices else types),
                *([] if default is inspect.Parameter.empty else [f"else {default!r}"]),
            ]
            yield f"    {', '.join(facts)}"
    for name in names:
        yield from commands(app[name], *path, name)


def _type(argument: Any) -> str:
    hint = argument.hint
    text = hint.__name__ if isinstance(hint, type) else str(hint)
    # The module of a class differs between Python versions.
    return re.sub(r"[\w.]+\.(\w+)", r"\1", text)


@pytest.mark.timeout(60)
def test_the_command_line_has_every_command_and_option():
    """
    Each ``towpath`` command takes the same parameters, with the same defaults.
    """
    (point,) = entry_points(group="console_scripts", name="towpath")
    point.load()
    (app,) = (
        value
        for value in vars(importlib.import_module(point.module)).values()
        if isinstance(value, App)
    )

    check("commands.txt", commands(app, "towpath"))


@pytest.mark.timeout(60)
def test_modules_that_can_be_run_take_the_same_options(monkeypatch):
    """
    ``python -m`` with each such module accepts the same options as before.
    """
    monkeypatch.setenv("COLUMNS", "80")
    lines = expected("options.txt")
    found = []
    for module in (line.partition(":")[0] for line in lines):
        monkeypatch.setattr(sys, "argv", [module, "--help"])
        for name in (module, f"{module}.__main__"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__")
        usage = printed.getvalue().partition("\n\n")[0].split()
        found.append(f"{module}: {' '.join(usage)} exits by {ended.value.code}")

    check("options.txt", found)


def test_the_relay_as_a_module_takes_a_file(monkeypatch, capsys, tmp_path):
    """
    ``python -m towpath.relay FILE`` reads the file, and exits with 2 for a mistake.
    """
    config = tmp_path / "its-own.toml"
    config.write_text("version = 1\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["towpath.relay", str(config)])
    monkeypatch.delitem(sys.modules, "towpath.relay.__main__", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("towpath.relay", run_name="__main__")

    assert (2, True) == (ended.value.code, "source" in capsys.readouterr().err)


def test_every_error_class_keeps_its_name_and_exit_code():
    """
    Names are headings of the runbook, and a supervisor reads the codes.
    """
    found = {
        f"{failure.__name__} {failure.disposition.value} {failure.exit_code}"
        for failure in failures()
    }

    check("errors.txt", sorted(found))


def test_the_configuration_has_the_same_keys():
    """
    Each key keeps its type, its limits and its default.
    """
    schema = Settings.model_json_schema()

    check("configuration.txt", keys("", _inlined(schema, schema)))


def _inlined(node: Any, schema: dict[str, Any]) -> Any:
    """Replace references with their targets, and leave descriptions out."""
    if isinstance(node, list):
        return [_inlined(one, schema) for one in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = schema["$defs"][node["$ref"].rpartition("/")[2]]
        node = target | {name: one for name, one in node.items() if name != "$ref"}
    return {
        name: {key: _inlined(one, schema) for key, one in part.items()}
        if name == "properties"
        else _inlined(part, schema)
        for name, part in node.items()
        if name not in _SENTENCES | {"$defs"}
    }


def keys(path: str, node: dict[str, Any]) -> Iterator[str]:
    """
    List the keys below a section, each with its entry in the schema.
    """
    is_section = "properties" in node
    left_out = {"properties", "default"} if is_section else set()
    rest = {name: one for name, one in node.items() if name not in left_out}
    yield f"{path or '.'} {json.dumps(_flat(rest), sort_keys=True, ensure_ascii=False)}"
    below = node.get("items", node)
    if isinstance(below, dict):
        for name, one in below.get("properties", {}).items():
            yield from keys(f"{path}.{name}".lstrip("."), one)


def _flat(node: dict[str, Any]) -> dict[str, Any]:
    """Leave out the keys of sections in lists, because they have their own lines."""
    items = node.get("items")
    if not isinstance(items, dict) or "properties" not in items:
        return node
    return node | {"items": {n: o for n, o in items.items() if n != "properties"}}


def test_packages_keep_their_scripts_and_entry_points():
    """
    Each member installs the same commands and groups as before.
    """
    found = []
    for path in sorted(ROOT.glob("*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        groups = {"scripts": project.get("scripts", {})} | project.get(
            "entry-points", {}
        )
        found += [
            f"{project['name']} {group} {name}"
            for group, points in sorted(groups.items())
            for name in sorted(points)
        ]

    check("entry-points.txt", found)


def test_every_metric_keeps_its_name():
    """
    Dashboards and alerts refer to the names.
    """
    check("metric-names.txt", sorted(telemetry.published()))


def test_names_that_the_pages_import_exist_with_their_members():
    """
    A package that follows ``docs`` can import, call and read the same names as before.
    """
    lines = []
    for module, name in sorted(documented_imports()):
        value = getattr(importlib.import_module(module), name)
        lines.append(f"{module} {name}{_signature(value)}")
        lines += [f"    {member}" for member in _members(value)]

    check("imported-by-others.txt", lines)


def documented_imports() -> set[tuple[str, str]]:
    """List the names that the Python blocks of all pages import from our packages."""
    found = set()
    for page in (ROOT / "docs").glob("*.md"):
        for block in _CODE_BLOCK.findall(page.read_text(encoding="utf-8")):
            found |= {
                (node.module, alias.name)
                for node in ast.walk(ast.parse(dedent(block)))
                if isinstance(node, ast.ImportFrom)
                and (node.module or "").startswith("towpath.")
                for alias in node.names
            }
    return found


def _signature(value: Any) -> str:
    if not callable(value):
        return ""
    with contextlib.suppress(ValueError):
        return f"({', '.join(map(str, _parameters(value)))})"
    return ""


def _parameters(value: Callable[..., Any]) -> Iterator[str]:
    """List the names of parameters, and whether they are optional."""
    for name, parameter in inspect.signature(value).parameters.items():
        may_be_left_out = parameter.default is not inspect.Parameter.empty
        if not (name.startswith("_") or parameter.kind is parameter.VAR_KEYWORD):
            yield f"{name}=" if may_be_left_out else name


def _members(value: Any) -> list[str]:
    """List the members that our classes define; a suite's test cases are left out."""
    if not isinstance(value, type):
        return []
    ours = [one for one in value.__mro__ if one.__module__.startswith("towpath.")]
    names = {name for one in ours for name in (*vars(one), *one.__annotations__)}
    return sorted(n for n in names if not n.startswith(("_", "test_")))
