"""The document that ``docker compose config`` generates from a compose file."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from towpath.sinks.jars.store import CLONE

FOLDER = CLONE / "deploy" / "compose"
# Built by deploy/setup.py: compose-go, the loader that docker compose contains.
_LOADER = CLONE / ".towpath" / "compose" / "loader"


class RefusedError(Exception):
    """The loader refuses a file, or one of its variables has no value."""


def variables() -> dict[str, str]:
    """Return the variables that ``.env`` sets."""
    text = (FOLDER / ".env").read_text(encoding="utf-8")
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


def document(folder: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """
    Return the document for a folder's compose.yaml and ``.env``, with all profiles.

    The environment overrides ``.env``.

    Raises:
        RefusedError: The file violates the Compose Specification, or a variable has no
            value.
    """
    done = subprocess.run(
        [_LOADER, "compose.yaml"],
        cwd=folder,
        env=dict(environ),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or "variable is not set" in done.stderr:
        raise RefusedError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
