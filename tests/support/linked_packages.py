"""
Packages of this environment, linked into another one.

The installation of PySpark and its like takes most of a test that only asks whether
the right packages are named. What wheels need is found by what they say themselves. Of
that, the packages that are installed here already are linked, file by file. An
installer that runs afterwards finds them in place, and fetches what is missing.
"""

import os
import re
import shutil
import sys
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, PathDistribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def link_needed(environment: Path, wheels: Path, wanted: Iterable[str]) -> None:
    """
    Link what requirements need, except the wheels and what is not installed here.

    Args:
        environment: The other environment, of the same Python.
        wheels: A folder of wheels, which go before the packages of the same names here.
        wanted: The requirements.
    """
    built = {canonicalize_name(w.name.split("-")[0]): w for w in wheels.glob("*.whl")}
    needed = [Requirement(text) for text in wanted]
    visited: set[tuple[str, frozenset[str]]] = set()
    while needed:
        requirement = needed.pop()
        name = canonicalize_name(requirement.name)
        place = name, frozenset(requirement.extras)
        found = _described(built[name]) if name in built else _installed(name)
        if place in visited or found is None:
            continue
        if name not in built and name not in {one for one, _ in visited}:
            _link(found, environment)
        visited.add(place)
        needed += _requirements(found, requirement.extras)


def _described(wheel: Path) -> Distribution:
    """Return a wheel's description of itself."""
    name, version = wheel.name.split("-")[:2]
    return PathDistribution(zipfile.Path(wheel, f"{name}-{version}.dist-info/"))


def _installed(name: str) -> Distribution | None:
    try:
        return Distribution.from_name(name)
    except PackageNotFoundError:
        return None


def _requirements(package: Distribution, extras: Iterable[str]) -> list[Requirement]:
    """Return what a package requires here, with some of its extras."""
    found = map(Requirement, package.requires or ())
    environments = [{"extra": extra} for extra in ("", *extras)]
    return [
        one
        for one in found
        if one.marker is None or any(map(one.marker.evaluate, environments))
    ]


def _link(package: Distribution, environment: Path) -> None:
    """Link a package's files; its programs are written, with the other interpreter."""
    for file in package.files or ():
        source = Path(os.path.normpath(str(file.locate())))
        target = environment / source.relative_to(sys.prefix)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.parent.name == "bin" and source.parent.parent == Path(sys.prefix):
            _write_program(source, target)
            continue
        try:
            target.hardlink_to(source)
        except OSError:
            # Another file system.
            shutil.copy2(source, target)


def _write_program(source: Path, target: Path) -> None:
    content = source.read_bytes()
    here, there = (os.fsencode(path) for path in (sys.prefix, target.parents[1]))
    target.write_bytes(re.sub(rb"(?<=^#!)" + re.escape(here), there, content))
    shutil.copymode(source, target)
