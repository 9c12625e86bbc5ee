"""
Run the commands of a page as its reader would: block after block, in one shell.

Shell blocks run as they are; SQL goes to the source's database; TOML is appended to
``towpath.toml``. Environment variables replace the addresses of the page's example.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from support.pages import ROOT, Block

# Reads statements from standard input and executes them in one transaction.
_SQL: Final = """\
import os, sys, psycopg
with psycopg.connect(os.environ["TOWPATH_SOURCE__DSN"], autocommit=True) as source:
    source.execute(sys.stdin.read())
"""
_END: Final = "END_OF_BLOCK"


def script(blocks: Iterable[Block]) -> str:
    """Return the blocks as one script that ends at the first command that fails."""
    parts = ["set -euo pipefail", "set -x"]
    for block in blocks:
        match block.language:
            case "sh":
                parts.append(block.text)
            case "sql":
                python = f'"$PYTHON" -c "$RUN_SQL" <<\'{_END}\''
                parts.append(f"{python}\n{block.text}{_END}")
            case "toml":
                parts.append(f"cat >> towpath.toml <<'{_END}'\n{block.text}{_END}")
            case other:
                message = f"a block of {other} cannot be run"
                raise ValueError(message)
    return "\n".join(parts) + "\n"


def run(
    text: str, folder: Path, settings: Mapping[str, str], timeout_s: float
) -> tuple[int, str]:
    """
    Run a script in a folder, and kill the processes that it leaves behind.

    Args:
        text: The script.
        folder: The folder in which it runs, and in which its output is kept.
        settings: Further variables of its environment.
        timeout_s: The timeout of the whole script.

    Returns:
        The exit code, and everything that was printed.
    """
    environment = {
        **os.environ,  # noqa: TID251 - a root
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # noqa: TID251
        "PYTHON": sys.executable,
        "RUN_SQL": _SQL,
        **settings,
    }
    printed = folder / "printed.log"
    with printed.open("wb") as log:
        shell = subprocess.Popen(
            ["bash", "-c", text],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = shell.wait(timeout_s)
        finally:
            kill_session(shell)
    return code, printed.read_text(encoding="utf-8", errors="replace")


def in_project(block: Block) -> str:
    """Return one block as a script that runs in the project's folder."""
    return f"cd {ROOT}\n{script([block])}"


def kill_session(shell: subprocess.Popen[bytes]) -> None:
    """Kill the shell and its children, which form one process group."""
    try:
        os.killpg(shell.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    shell.wait()
