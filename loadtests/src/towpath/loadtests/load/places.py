"""The files of a run: whether they can be written is known before the load."""

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from towpath.loadtests.errors import LoadOptionError
from towpath.loadtests.load.options import NO_REPORT


def check_places(options: argparse.Namespace) -> None:
    """
    Check that the progress file and the report can be written.

    Raises:
        LoadOptionError: A folder is missing or is not writable, or a name is too long
            or that of a folder.
    """
    progress, named = options.load_progress, options.load_report
    if progress and not _is_replaceable(Path(progress)):
        message = f"--load-progress: {progress} is not a file in a writable folder"
        raise LoadOptionError(message)
    if named == NO_REPORT or not (named or options.headless):
        return
    folder = Path(named).absolute()
    if not _is_writable((folder, *folder.parents)):
        message = f"--load-report: {named or folder} is not a writable folder"
        raise LoadOptionError(message)


def beside_of(file: Path) -> Path:
    """Return the file that is written first, and then replaces this one."""
    return file.with_name(f"{file.name}.new")


def _is_replaceable(file: Path) -> bool:
    try:
        is_folder = file.is_dir() or beside_of(file).is_dir()
    except OSError:
        # A name that is too long, or a folder that may not be searched.
        return False
    return not is_folder and _is_writable([file.parent])


def _is_writable(places: Iterable[Path]) -> bool:
    """Return whether the first of these places that exists is a writable folder."""
    try:
        found = next((place for place in places if place.exists()), None)
    except OSError:
        # As above.
        return False
    return found is not None and found.is_dir() and os.access(found, os.W_OK)
