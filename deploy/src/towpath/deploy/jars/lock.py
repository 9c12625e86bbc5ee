"""
The lock of the Java archives: one line each.

::

    <use> <group>:<artifact>:<version>[:<type>[:<classifier>]] <file> <sha256> <bytes>
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# deploy/src/towpath/deploy/jars/lock.py -> the clone
CLONE: Final = Path(__file__).resolve().parents[5]
LOCK: Final = CLONE / "deploy" / "jars" / "jars.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One archive for one use: ``kafka``, ``opensearch``, ``registry`` or ``spark``."""

    use: str
    coordinate: str
    file: str
    sha256: str
    size_bytes: int

    @property
    def parts(self) -> tuple[str, str, str, str, str]:
        """Group, artifact, version, type and classifier (empty if none)."""
        steps = self.coordinate.split(":")
        steps += ["jar", ""][len(steps) - 3 :]
        group, artifact, version, kind, classifier = steps
        return group, artifact, version, kind, classifier

    @property
    def repository_path(self) -> Path:
        """Where a Maven repository keeps it."""
        group, artifact, version, kind, classifier = self.parts
        name = f"{artifact}-{version}" + (f"-{classifier}" if classifier else "")
        return Path(*group.split("."), artifact, version, f"{name}.{kind}")


def read(path: Path = LOCK) -> tuple[Jar, ...]:
    """Read the lock file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return tuple(
        Jar(use=use, coordinate=coordinate, file=file, sha256=sha, size_bytes=int(size))
        for use, coordinate, file, sha, size in rows
    )


def digest(path: Path = LOCK) -> str:
    """Return a short name of the lock's content: another lock, another folder."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
