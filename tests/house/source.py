"""
Measures of the source: files, classes, docstrings, layers.

Every function is pure and takes parsed modules or source text, so that a test can
pass in examples.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

SMALL_LINES: Final = 150
SINK_LAYERS: Final = "sinks-layers"
_CLAUSE: Final = re.compile(r"((What|Who)(ever)?|Of)\b")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n")
# These members of named tuples are public, despite the underscore.
_NAMED_TUPLE_METHODS: Final = {
    "_asdict",
    "_fields",
    "_field_defaults",
    "_make",
    "_replace",
}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """
    One parsed file.

    Attributes:
        member: The top-level folder that the file belongs to.
        path: The file's path, relative to the project.
    """

    member: str
    path: Path
    text: str
    tree: ast.Module


def module_of(path: str | Path, text: str) -> Module:
    """Parse one file."""
    return Module(Path(path).parts[0], Path(path), text, ast.parse(text))


def modules_below(root: Path, pattern: str) -> list[Module]:
    """Parse the files of a project that match a glob."""
    paths = sorted(root.glob(pattern))
    return [
        module_of(p.relative_to(root), p.read_text(encoding="utf-8")) for p in paths
    ]


def is_small(module: Module) -> bool:
    """
    Return whether a file is short and has at most one class.

    A migration does not count: once released, it is never merged with another file.
    """
    if "migrations" in module.path.parts:
        return False
    is_short = len(module.text.splitlines()) <= SMALL_LINES
    return is_short and len(list(_classes(module))) <= 1


def top_level_files(modules: Iterable[Module], member: str) -> list[Path]:
    """List the files of a member that are in none of its packages."""
    top = Path(member, "src", "towpath", member)
    return [module.path for module in modules if module.path.parent == top]


def repeated_classes(modules: Iterable[Module]) -> list[tuple[str, str]]:
    """
    List each class name that a member uses more than once, with the member.
    """
    count = Counter(
        (module.member, node.name) for module in modules for node in _classes(module)
    )
    return [name for name, times in count.items() if times > 1]


def functions_named(modules: Iterable[Module], name: str) -> int:
    """Count the functions and methods with a given name."""
    return sum(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        for module in modules
        for node in ast.walk(module.tree)
    )


def clause_sentences(module: Module) -> list[str]:
    """List the docstring sentences that begin with a clause instead of a subject."""
    texts = (ast.get_docstring(node) for node in _documented(module))
    sentences = (
        sentence.strip()
        for text in texts
        if text is not None
        for sentence in _SENTENCE_END.split(text)
    )
    return [sentence for sentence in sentences if _CLAUSE.match(sentence)]


def code_lines(module: Module) -> int:
    """Count the lines that are not blank, comments, or parts of docstrings."""
    documented: set[int] = set()
    for node in _documented(module):
        if ast.get_docstring(node) is not None:
            text = node.body[0]
            documented |= set(range(text.lineno, (text.end_lineno or 0) + 1))
    return sum(
        bool(line.strip()) and not line.strip().startswith("#")
        for number, line in enumerate(module.text.splitlines(), 1)
        if number not in documented
    )


def private_accesses(module: Module) -> list[str]:
    """List the private names that a test reads from objects of other modules."""
    return [
        node.attr
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in _NAMED_TUPLE_METHODS
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
    ]


def layers(project: dict[str, Any], contract: str = SINK_LAYERS) -> int:
    """Count the layers of an import contract of ``pyproject.toml``."""
    contracts = project["tool"]["importlinter"]["contracts"]
    return next(len(one["layers"]) for one in contracts if one["id"] == contract)


class SinkPorts(NamedTuple):
    """The names of a sink's methods and flags, optional ones included."""

    verbs: tuple[str, ...]
    flags: tuple[str, ...]


def sink_ports(ports: Module) -> SinkPorts:
    """
    Read the names of a sink's methods and flags from its protocols.

    The protocols are ``Sink``, and each one that is checked at run time.
    """
    verbs: list[str] = []
    flags: list[str] = []
    for node in _classes(ports):
        optional = "runtime_checkable" in map(ast.unparse, node.decorator_list)
        if node.name == "Sink" or optional:
            verbs += [each.name for each in node.body if _is_function(each)]
            flags += [
                ast.unparse(each.target)
                for each in node.body
                if isinstance(each, ast.AnnAssign)
            ]
    return SinkPorts(tuple(verbs), tuple(flags))


def write_strategies(modules: Iterable[Module]) -> list[str]:
    """
    List the classes that implement a strategy for writing a batch.

    They have ``write(..., batch_id)``. Protocols do not count, nor do classes that only
    pass the batch on to the ``write`` of another object.
    """
    return [
        node.name
        for module in modules
        for node in _classes(module)
        if "Protocol" not in map(ast.unparse, node.bases)
        for method in node.body
        if _is_function(method)
        and method.name == "write"
        and "batch_id" in [argument.arg for argument in method.args.args]
        and not _passes_on(method)
    ]


def _passes_on(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a method returns only the result of another object's ``write``."""
    returned = [each.value for each in ast.walk(method) if isinstance(each, ast.Return)]
    return bool(returned) and all(
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr == "write"
        for value in returned
    )


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _classes(module: Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))


def _documented(module: Module) -> Sequence[_DOCUMENTED]:
    return [node for node in ast.walk(module.tree) if isinstance(node, _DOCUMENTED)]
