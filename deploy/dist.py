"""
Build the packages: a wheel and a source distribution for every member, with SBOMs.

``make dist`` runs this script and writes to ``dist``; ``make wheels`` builds only the
wheels, which is enough for the images (``deploy/images``). Each member is copied to its
own temporary folder, with the license, the version from the file ``VERSION``, and its
dependencies on other members pinned to that version, so that a source distribution
needs nothing outside itself. Only files that git tracks are copied, and the archives
carry the commit's time: the same commit produces the same bytes.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomlkit

CLONE = Path(__file__).resolve().parents[1]
KINDS = ("sdist", "wheel")
# The suffixes of the files that this script creates.
_MADE = (".whl", ".tar.gz", ".cdx.json")
# The locks of the images, and of packages that are installed on their own.
LOCKS = sorted((CLONE / "requirements").glob("*/*.lock"))


class SbomError(Exception):
    """An SBOM does not match CycloneDX's schema."""


def main(arguments: list[str]) -> int:
    """Build everything, or only the wheels, into a folder; return an exit code."""
    parser = argparse.ArgumentParser(prog="dist.py", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=CLONE / "dist")
    parser.add_argument("--wheels", action="store_true", help="build only the wheels")
    options = parser.parse_args(arguments)
    out = options.folder.resolve()
    if out.exists() and not holds_packages(out):
        parser.error(f"{out} is not a folder of packages, and would be deleted")
    make(out, ("wheel",) if options.wheels else KINDS)
    if not options.wheels:
        check_sboms(out)
    for path in sorted(out.iterdir()):
        print(path.name)
    return 0


def holds_packages(out: Path) -> bool:
    """Return whether a path is a folder of only Towpath's packages and SBOMs."""
    return out.is_dir() and all(
        path.is_file() and path.name.startswith("towpath") and path.name.endswith(_MADE)
        for path in out.iterdir()
    )


def make(out: Path, kinds: Sequence[str]) -> None:
    """Build the packages into a new folder; if all kinds are built, write SBOMs too."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    epoch = commit_time()
    for member in members():
        with tempfile.TemporaryDirectory() as folder:
            stage(member, Path(folder))
            build(Path(folder), out, epoch, kinds)
    if kinds == KINDS:
        for lock in LOCKS:
            write_sbom(lock, out)


def members() -> list[str]:
    """Return the names of the members' folders."""
    return sorted(path.parent.name for path in CLONE.glob("*/pyproject.toml"))


def commit_time() -> str:
    """Return the commit's time in seconds; SOURCE_DATE_EPOCH overrides it."""
    override = os.environ.get("SOURCE_DATE_EPOCH")  # noqa: TID251 - a root
    return override or _git("log", "-1", "--format=%ct").strip()


def stage(member: str, folder: Path) -> None:
    """Copy a member's tracked files, and complete its project file."""
    for name in _git("ls-files", "-z", member).split("\0"):
        path = CLONE / name
        if name and path.is_file():
            target = folder / Path(name).relative_to(member)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            # Set the mode, so that it does not depend on the builder's umask.
            target.chmod(0o755 if os.access(path, os.X_OK) else 0o644)
    shutil.copyfile(CLONE / "LICENSE", folder / "LICENSE")
    (folder / "LICENSE").chmod(0o644)
    project = folder / "pyproject.toml"
    version = (CLONE / "VERSION").read_text(encoding="utf-8").strip()
    text = pinned(project.read_text(encoding="utf-8"), version)
    project.write_text(text, encoding="utf-8")


def pinned(text: str, version: str) -> str:
    """Return a project file with the version, and other members pinned to it."""
    document: Any = tomlkit.parse(text)
    project = document["project"]
    del project["dynamic"]
    project["version"] = version
    del document["tool"]["hatch"]["version"]
    lists = [project["dependencies"]]
    lists += project.get("optional-dependencies", {}).values()
    for requirements in lists:
        for index, requirement in enumerate(requirements):
            if requirement.startswith("towpath-"):
                requirements[index] = f"{requirement}=={version}"
    return tomlkit.dumps(document)


def build(folder: Path, out: Path, epoch: str, kinds: Sequence[str]) -> None:
    """Build a staged member's wheel, its source distribution, or both."""
    targets = [argument for kind in kinds for argument in ("--target", kind)]
    command = (
        *(sys.executable, "-m", "hatchling", "build", *targets),
        *("--directory", str(out)),
    )
    run(command, folder, SOURCE_DATE_EPOCH=epoch)


def run(command: Sequence[str], folder: Path = CLONE, **variables: str) -> None:
    """
    Run a program quietly; print its whole output if it fails.

    Raises:
        CalledProcessError: The program failed.
    """
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},  # noqa: TID251 - a root
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        print(done.stdout, end="", file=sys.stderr)
        done.check_returncode()


def write_sbom(lock: Path, out: Path) -> None:
    """Write the CycloneDX SBOM of a lock's packages, with versions and hashes."""
    target = out / f"towpath-{lock.stem}.cdx.json"
    command = (
        *(str(Path(sys.executable).with_name("cyclonedx-py")), "requirements"),
        *("--no-validate", "--output-reproducible", "--output-format", "JSON"),
        *("--output-file", str(target), str(lock)),
    )
    run(command)


def check_sboms(out: Path) -> None:
    """
    Check the SBOMs against CycloneDX's schema.

    One validator checks all of them: the program that writes them would create one for
    each SBOM, which takes longer than the check itself.

    Raises:
        SbomError: An SBOM does not match the schema.
    """
    # The environment that only builds wheels does not have this package.
    from cyclonedx.schema import OutputFormat, SchemaVersion  # noqa: PLC0415
    from cyclonedx.validation import make_schemabased_validator  # noqa: PLC0415

    validator = make_schemabased_validator(OutputFormat.JSON, SchemaVersion.V1_6)
    for path in sorted(out.glob("*.cdx.json")):
        error = validator.validate_str(path.read_text(encoding="utf-8"))
        if error is not None:
            message = f"{path.name} is not a valid CycloneDX document: {error}"
            raise SbomError(message)


def _git(*arguments: str) -> str:
    command = ("git", "-C", str(CLONE), *arguments)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
