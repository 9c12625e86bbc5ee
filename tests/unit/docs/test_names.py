"""Names on the pages exist: modules, files, settings, metrics, targets and commands."""

import ast
import importlib.util
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Final

import pytest
from cyclopts import App

from support.pages import DOCS, ROOT, blocks, name_of, pages, spans
from towpath.cli.app import app
from towpath.settings import Settings
from towpath.settings.section import keys

# The changelog names things that no longer exist.
PAGES: Final = [page for page in pages() if page.name != "CHANGELOG.md"]
_SHELL: Final = ("sh", "console", "")
_DOTTED: Final = re.compile(r"towpath(?:\.[A-Za-z_]\w*)+")
_FILE: Final = re.compile(
    r"[\w.-]+(?:/[\w.*-]+)+\.(?:py|sql|lua|toml|yaml|avsc|md|svg)"
    r"|(?:schemas|settings|cli|outbox|inbox|relay|sinks|services|loadtests|deploy|tests|docs)"
    r"(?:/[\w.-]+)+/?"
)
_KEY: Final = re.compile(
    r"(?:source|kafka|registry|topics|relay|sinks|sink)(?:\.[a-z_]+)+(?<!lock|toml)"
)
_SECTION_KEY: Final = re.compile(r"\[+([a-z.]+)\]+ ([a-z_]+)")
_METRIC: Final = re.compile(r"towpath_(?:relay|sink|snapshot|build|inbox)_[a-z_]+")
_TEST: Final = re.compile(r"test_\w+")
_ERROR: Final = re.compile(r"[A-Z]\w+Error")
# Prometheus adds these to the name of a histogram.
_SUFFIX: Final = re.compile(r"_(?:bucket|sum|count)$")
_TARGET: Final = re.compile(r"^make ([a-z-]+)(?= |$)", re.MULTILINE)
# Names of the examples' own tables, topics and files.
_EXAMPLES: Final = ("towpath.shop.", "towpath.toml", ".towpath/")
# The name above a block: a file that the page asks its reader to write.
_WRITTEN: Final = re.compile(r"(?m)^`([\w./-]+)`\n\n```")
# Fields of a record's value, named together with their object.
_FIELDS: Final = ("source.lsn", "source.origin_lsn")


@cache
def source() -> str:
    """Return the source of all members, which contains names of tables and topics."""
    return "\n".join(
        path.read_text(encoding="utf-8")
        for suffix in ("py", "sql", "lua")
        for path in sorted(ROOT.glob(f"*/src/**/*.{suffix}"))
    )


@cache
def written_tests() -> str:
    """Return the source of all tests."""
    return "\n".join(
        path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("tests/**/*.py"))
    )


def is_dotted_name(name: str) -> bool:
    """Return whether a dotted name is a module, an attribute, or in the source text."""
    if name.startswith(_EXAMPLES) or re.search(rf"\b{re.escape(name)}\b", source()):
        return True
    module, _, attribute = name.rpartition(".")
    if _spec(name):
        return True
    found = _spec(module)
    if found is None or found.origin is None:
        return False
    tree = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
    return attribute in {name for node in tree.body for name in _bound(node)}


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None


def _bound(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.ClassDef() | ast.FunctionDef():
            yield node.name
        case ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name for alias in names)
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def is_file(name: str) -> bool:
    """Return whether a path exists: from the root, in the docs, or inside a member."""
    if name.startswith(_EXAMPLES):
        return True
    member = name.partition("/")[0]
    blog = DOCS / "examples/blog"
    folders = (ROOT, DOCS, DOCS / "how-to", blog, ROOT / member / "src/towpath")
    return any(any(folder.glob(name)) for folder in folders)


def is_key(name: str) -> bool:
    """Return whether the configuration has such a key or section."""
    known = {key.name for key in keys(Settings)}
    return name in (known | {*_FIELDS}) or any(
        key.startswith(f"{name}.") for key in known
    )


def is_metric(name: str) -> bool:
    """Return whether a metric is published, or is a prefix of published metrics."""
    return name in source() or _SUFFIX.sub("", name) in source()


def is_test(name: str) -> bool:
    """Return whether a test has that name."""
    return f"def {name}(" in written_tests()


def is_error(name: str) -> bool:
    """Return whether one of our error classes has that name."""
    return f"class {name}(" in source()


def is_target(name: str) -> bool:
    """Return whether the Makefile has a target."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return re.search(rf"^{re.escape(name)}:", makefile, re.MULTILINE) is not None


def commands(text: str) -> Iterator[str]:
    """Yield the Towpath commands that a page shows, in spans and in blocks."""
    shown = [span for span in spans(text) if span.startswith("towpath ")]
    for block in blocks(text):
        if block.language in _SHELL:
            shown += block.text.splitlines()
    for line in shown:
        for part in re.split(r"[;&|]+ |&$|\$\(|\)", line.partition(" #")[0]):
            if part.strip().startswith("towpath "):
                yield part.strip()


def wrong_command(command: str) -> str | None:
    """Return an error for the first unknown word of a command, if there is one."""
    words = _words(command)[1:]
    at: App = app
    while words and words[0] in at and not words[0].startswith("-"):
        at, words = at[words[0]], words[1:]
    if words and _has_commands(at) and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        return f"no command {words[0]}: {command}"
    known = _options(at)
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    unknown = sorted(options - known)
    return f"no option {unknown[0]}: {command}" if unknown else None


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command.replace("[", " ").replace("]", " "))
    except ValueError:
        return command.split()


def _has_commands(at: App) -> bool:
    return any(not name.startswith("-") for name in at)


def _options(at: App) -> set[str]:
    general = {"--help", "--version", "--log-format"}
    if at.default_command is None:
        return general
    arguments = at.assemble_argument_collection()
    return general.union(*(argument.names for argument in arguments))


CHECKS: Final[dict[str, tuple[re.Pattern[str], Callable[[str], bool]]]] = {
    "module": (_DOTTED, is_dotted_name),
    "file": (_FILE, is_file),
    "key": (_KEY, is_key),
    "metric": (_METRIC, is_metric),
    "test": (_TEST, is_test),
    "error": (_ERROR, is_error),
}


def wrong_names(text: str) -> list[str]:
    """List the names of a page that the project does not have."""
    found = []
    written = set(_WRITTEN.findall(text))
    for span in set(spans(text)) - written:
        for kind, (pattern, is_known) in CHECKS.items():
            if pattern.fullmatch(span) and not is_known(span):
                found.append(f"no {kind}: {span}")
        if (key := _SECTION_KEY.fullmatch(span)) and not is_key(".".join(key.groups())):
            found.append(f"no key: {span}")
    shown = "\n".join([*spans(text), *(block.text for block in blocks(text))])
    targets = set(_TARGET.findall(shown))
    found += [f"no target: make {name}" for name in targets if not is_target(name)]
    found += [wrong for command in commands(text) if (wrong := wrong_command(command))]
    return found


# The test reads all of the source once, and imports the commands that pages show.
@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_name_that_a_page_uses_exists(page: Path):
    """
    Modules, files, keys, metrics, targets, commands and options on pages exist.
    """
    assert wrong_names(page.read_text(encoding="utf-8")) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("`towpath.relay.nothing`", "no module: towpath.relay.nothing"),
        (
            "`towpath.schemas.position.Nothing`",
            "no module: towpath.schemas.position.Nothing",
        ),
        ("`relay/nothing.py`", "no file: relay/nothing.py"),
        ("`relay/nothing`", "no file: relay/nothing"),
        ("`tests/unit/nothing.py`", "no file: tests/unit/nothing.py"),
        ("`relay.snapshot.nothing`", "no key: relay.snapshot.nothing"),
        ("`[relay] nothing`", "no key: [relay] nothing"),
        ("`towpath_relay_nothing_total`", "no metric: towpath_relay_nothing_total"),
        ("`test_nothing_at_all`", "no test: test_nothing_at_all"),
        ("`NothingError`", "no error: NothingError"),
        ("`make nothing` `x`", "no target: make nothing"),
        ("`towpath sink mend`", "no command mend: towpath sink mend"),
        ("`towpath verify --mend`", "no option --mend: towpath verify --mend"),
        (
            "```sh\nx; towpath up --mend  # y\n```",
            "no option --mend: towpath up --mend",
        ),
    ],
)
def test_a_planted_wrong_name_is_found(text: str, finding: str):
    """
    Each kind of name is checked, in prose and in blocks.
    """
    assert wrong_names(text) == [finding]


@pytest.mark.timeout(120)
def test_names_that_exist_are_not_reported():
    """
    Names in every form that the pages use are recognized.
    """
    text = (
        "`towpath.schemas.position` `towpath.schemas.position.Position`"
        " `towpath.signal` `schemas/position.py` `docs/index.md`"
        " `relay.snapshot.chunk_rows` `relay.snapshot` `[relay] on_gap` `make demo`"
        " `towpath sink add x.toml --signal ID` `towpath verify cache --sample 5%`"
    )

    assert wrong_names(text) == []
