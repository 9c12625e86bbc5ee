"""Postgres 15 comes from an installed server, or from the archive in its lock."""

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from towpath.deploy.local import postgres
from towpath.sinks.errors import JarsError
from towpath.sinks.jars import fetch, store


def _server(folder: Path, release: str) -> Path:
    """Write a program that prints its release, and return its folder."""
    folder.mkdir(parents=True)
    program = folder / "postgres"
    program.write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {release}'\n")
    program.chmod(0o755)
    return folder


def _archive(path: Path, *names: str) -> Path:
    """Write an archive that contains a packed server under each of the names."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as packed:
        info = tarfile.TarInfo("bin/postgres")
        info.size = 6
        info.mode = 0o700
        packed.addfile(info, io.BytesIO(b"server"))
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "")
        for name in names:
            jar.writestr(name, buffer.getvalue())
    return path


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Provide a separate store that already contains the archive."""
    (jar,) = store.read_lock(postgres.POSTGRES_15_LOCK)
    (tmp_path / jar.use).mkdir()
    _archive(tmp_path / jar.use / jar.file, "postgres.txz")
    monkeypatch.setattr(fetch, "ensure", lambda *_: 0)
    monkeypatch.setattr(postgres, "ROOTS_FOLDER", tmp_path / "shared")
    return {"TOWPATH_JARS": str(tmp_path)}


def test_the_lock_lists_one_archive_of_release_15():
    """
    It has a sha256, a size and its own file name.
    """
    (jar,) = store.read_lock(postgres.POSTGRES_15_LOCK)

    assert ("postgres15", "15", jar.repository_path.name, 64, True) == (
        jar.use,
        jar.parts[2].partition(".")[0],
        jar.file,
        len(jar.sha256),
        jar.size_bytes > 0,
    )


def test_an_installed_postgres_15_is_used(tmp_path: Path, environ: dict[str, str]):
    """
    Nothing is unpacked if the variable names an installed server.
    """
    folder = _server(tmp_path / "pg" / "bin", "15.4 (Debian 15.4-1)")
    found = postgres.postgres_15_programs(
        print, environ | {"TOWPATH_PG_BIN": str(folder)}
    )

    assert tmp_path / "pg" == found


@pytest.mark.parametrize("release", ["18.1", "9.6.15", ""])
@pytest.mark.parametrize("uid", [0, 1000])
def test_without_an_installed_postgres_15_the_archive_is_unpacked_once(
    tmp_path: Path,
    environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    release: str,
    uid: int,
):
    """
    Any other release is ignored; every user may run the copy that root unpacks.
    """
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    # The user who runs the test may not change owners, unlike the simulated root.
    for name in ("chown", "lchown"):
        monkeypatch.setattr(os, name, lambda *_args, **_options: None)
    bin_folder = _server(tmp_path / "bin", release) if release else tmp_path / "none"
    environ |= {"TOWPATH_PG_BIN": str(bin_folder)}
    found = postgres.postgres_15_programs(print, environ)
    (found / "made").touch()
    again = postgres.postgres_15_programs(print, environ)
    program = found / "bin" / "postgres"

    assert (found, True, b"server", 0o755) == (
        again,
        (again / "made").exists(),
        program.read_bytes(),
        program.stat().st_mode & 0o777,
    )
    assert found.is_relative_to(tmp_path / ("postgres15" if uid else "shared"))


@pytest.mark.parametrize("names", [(), ("a.txz", "b.txz")])
def test_an_archive_with_no_or_several_servers_is_refused(
    tmp_path: Path, names: tuple[str, ...]
):
    """
    Neither is the archive that the lock describes.
    """
    archive = _archive(tmp_path / "a.jar", *names)

    with pytest.raises(
        JarsError, match=f"contains {len(names)} servers instead of one"
    ):
        postgres.unpack_server(archive, tmp_path / "out")
