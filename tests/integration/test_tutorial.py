"""The tutorial, followed literally in an empty environment with the built wheels."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support import remains
from support.pages import DOCS, ROOT
from support.tutorial import Command, ReaderShell, TutorialError, put, steps
from towpath.deploy.local.own_stack import stop_all
from towpath.deploy.local.stack import Stack
from towpath.sinks.jars import store

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

PAGE = DOCS / "tutorial.md"
# Logs of the page's background processes, shown when a step fails.
LOGS = ("relay.log", "sinks.log", "consumer.log", "add.log")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> Path:
    """Build the packages of all members, as ``make wheels`` does."""
    folder = tmp_path_factory.mktemp("packages") / "dist"
    program = ROOT / "deploy/dist.py"
    subprocess.run(
        [sys.executable, program, "--wheels", folder], check=True, capture_output=True
    )
    return folder


@pytest.fixture
def home(wheels) -> Iterator[Path]:
    """Provide a folder whose subfolder ``towpath`` has the wheels and the blog."""
    folder = Path(tempfile.mkdtemp(prefix=remains.FOLDERS))
    (folder / "owner").write_text(str(os.getpid()), encoding="utf-8")
    examples = folder / "towpath/docs/examples"
    examples.parent.mkdir(parents=True)
    examples.symlink_to(DOCS / "examples")
    (folder / "towpath/dist").symlink_to(wheels)
    yield folder
    stack = Stack(folder)
    stop_all(stack.state)
    stack.purge()
    shutil.rmtree(folder)


def environment(home: Path) -> Mapping[str, str]:
    """Return the environment of a reader who has Python, psql and the archives."""
    ours = ("TOWPATH_", "PYTHON", "VIRTUAL_ENV", "JAVA_HOME")
    inherited = os.environ.items()  # noqa: TID251 - a root
    kept = {name: text for name, text in inherited if not name.startswith(ours)}
    python = Path(sys.base_prefix, "bin")
    return {
        **kept,
        remains.MARK: os.environ[remains.MARK],  # noqa: TID251 - a root
        "PATH": f"{python}{os.pathsep}{kept['PATH']}",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # Compiling takes half of an installation's time, mostly for unused modules.
        "PIP_NO_COMPILE": "1",
        "TOWPATH_JARS": str(store.folder()),
        # A later test run stops the servers of a killed run in this folder.
        "TOWPATH_STATE": str(home),
    }


def test_the_tutorial_does_what_it_shows(home):
    """
    Every command succeeds, and its output has each line that the page shows.
    """
    shell = ReaderShell(home, environment(home))
    blog = home / "blog"
    try:
        for step in steps(PAGE.read_text(encoding="utf-8")):
            if isinstance(step, Command):
                shell.run(step, 420.0)
            else:
                put(step, blog)
    except TutorialError as error:
        for path in (blog / name for name in LOGS):
            if path.exists():
                error.add_note(f"{path.name}:\n{path.read_text()[-2000:]}")
        raise
    finally:
        shell.close()
