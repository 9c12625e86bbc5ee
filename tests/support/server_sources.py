"""
The regression SQL of Postgres, from its source package.

``TOWPATH_PG_SOURCES`` names an unpacked source tree. Without it, apt fetches Debian's
source package into a separate folder, with separate package lists: this needs no root
privileges, and does not change the system.
"""

import os
import re
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from towpath.sinks.jars.store import refuse_outside_paths

PACKAGE: Final = "postgresql-15"
REGRESS: Final = "src/test/regress"
_APT: Final = Path("/etc/apt")
_FETCH_WITHIN_S: Final = 300


class SourcesUnavailableError(Exception):
    """The sources are not available here; the message has the reason."""


def regression_folder(scratch: Path) -> Path:
    """
    Return a folder with ``sql``, ``data`` and ``parallel_schedule``.

    Args:
        scratch: An empty folder for the fetched files.

    Raises:
        SourcesUnavailableError: The named folder lacks them, or apt cannot fetch them.
    """
    named = os.environ.get("TOWPATH_PG_SOURCES")  # noqa: TID251 - a root
    if named:
        folder = Path(named) / REGRESS
        if not (folder / "parallel_schedule").exists():
            message = f"TOWPATH_PG_SOURCES: there is no {folder}/parallel_schedule"
            raise SourcesUnavailableError(message)
        return folder
    return _unpacked(_fetched(scratch), scratch)


def schedule(folder: Path) -> list[str]:
    """List the tests in the order of the server's own schedule."""
    lines = (folder / "parallel_schedule").read_text(encoding="utf-8").splitlines()
    named = [line.removeprefix("test:") for line in lines if line.startswith("test:")]
    return [name for line in named for name in line.split()]


def _fetched(scratch: Path) -> Path:
    lists, cache = scratch / "lists", scratch / "cache"
    for folder in (lists / "partial", cache / "archives" / "partial"):
        folder.mkdir(parents=True)
    sources = scratch / "sources.list"
    sources.write_text("\n".join(_source_lines()) + "\n", encoding="utf-8")
    own = (
        *("-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=-"),
        *("-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={cache}"),
    )
    _apt(scratch, *own, "update")
    # A mirror may lack the newest version that it lists; if so, an older one is tried.
    shown = _run(scratch, "apt-cache", *own, "showsrc", PACKAGE)
    versions = re.findall(r"(?m)^Version: (\S+)$", shown)
    for version in sorted(versions, key=_numbers, reverse=True):
        wanted = f"{PACKAGE}={version}"
        try:
            _apt(scratch, *own, "source", "--download-only", wanted)
        except SourcesUnavailableError:
            continue
        return next(scratch.glob(f"{PACKAGE}_*.orig.tar.*"))
    message = f"apt has no source package {PACKAGE} that can be fetched"
    raise SourcesUnavailableError(message)


def _numbers(version: str) -> list[int]:
    """Return a version as numbers: 15.14 is newer than 15.9."""
    return [int(number) for number in re.findall(r"\d+", version)]


def _source_lines() -> Sequence[str]:
    """Return the system's package sources, as lines for source packages."""
    found = []
    for path in sorted((_APT / "sources.list.d").glob("*.sources")):
        for stanza in path.read_text(encoding="utf-8").split("\n\n"):
            fields = dict(re.findall(r"(?m)^(\w[\w-]*): *(.+)$", stanza))
            signed = fields.get("Signed-By")
            option = f"[signed-by={signed}] " if signed else ""
            found += [
                f"deb-src {option}{uri} {suite} {fields.get('Components', 'main')}"
                for uri in fields.get("URIs", "").split()
                for suite in fields.get("Suites", "").split()
            ]
    classic = _APT / "sources.list"
    if classic.exists():
        text = classic.read_text(encoding="utf-8")
        found += [f"deb-src {line}" for line in re.findall(r"(?m)^deb (.+)$", text)]
    if not found:
        message = "this system has no apt package sources"
        raise SourcesUnavailableError(message)
    return found


def _apt(folder: Path, *arguments: str) -> str:
    return _run(folder, "apt-get", "-qq", *arguments)


def _run(folder: Path, *command: str) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            timeout=_FETCH_WITHIN_S,
        )
    except subprocess.CalledProcessError as error:
        message = f"{command[0]} could not fetch the server's sources"
        raise SourcesUnavailableError(message) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourcesUnavailableError(str(error)) from error
    return done.stdout


def _unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as tar:
        wanted = [m for m in tar.getmembers() if f"/{REGRESS}/" in m.name]
        refuse_outside_paths(tar)
        tar.extractall(folder, wanted)  # noqa: S202 - filtered
    return next(folder.glob(f"*/{REGRESS}"))
