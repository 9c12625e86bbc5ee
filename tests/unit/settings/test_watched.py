"""A watched configuration file is read only after a change."""

import os

import pytest

from towpath.schemas.failure import ConfigurationError
from towpath.settings import WatchedFile

CONFIG = """\
version = 1
[[source]]
dsn = "postgresql://shop"
[kafka]
bootstrap_servers = "{broker}"
[registry]
url = "http://registry"
"""


def test_a_file_is_read_once_until_it_changes(tmp_path):
    """
    A replacement with the same size and time counts as a change.
    """
    path = tmp_path / "towpath.toml"
    path.write_text(CONFIG.format(broker="kafka:1"))
    watched = WatchedFile(path, {})
    first, again = watched.changed(), watched.changed()
    successor = tmp_path / "next"
    successor.write_text(CONFIG.format(broker="kafka:2"))
    times = path.stat()
    os.utime(successor, ns=(times.st_atime_ns, times.st_mtime_ns))
    successor.replace(path)
    changed = watched.changed()

    assert first is not None
    assert again is None
    assert changed is not None
    assert "kafka:2" == changed.kafka.bootstrap_servers


def test_mistakes_are_reported_once_for_each_change(tmp_path):
    """
    A missing file is checked each time, and read once it exists.
    """
    path = tmp_path / "towpath.toml"
    watched = WatchedFile(path, {})
    for _ in range(2):
        with pytest.raises(ConfigurationError):
            watched.changed()
    path.write_text("version = ")
    with pytest.raises(ConfigurationError):
        watched.changed()
    silent = watched.changed()
    path.write_text(CONFIG.format(broker="kafka:1"))

    assert silent is None
    assert watched.changed() is not None


def test_a_file_is_read_once_it_becomes_readable(tmp_path, monkeypatch):
    """
    A permission granted later changes neither the content nor the modification time.
    """
    path = tmp_path / "towpath.toml"
    path.write_text(CONFIG.format(broker="kafka:1"))
    path.chmod(0o600)
    watched = WatchedFile(path, {})

    def refuse(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    # A superuser, who may run the tests, is never denied access.
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.read_text", refuse)
        with pytest.raises(ConfigurationError):
            watched.changed()
        silent = watched.changed()
    before = path.stat().st_ctime_ns
    # The clock of a file system is coarse.
    while path.stat().st_ctime_ns == before:
        path.chmod(0o644)

    assert silent is None
    assert watched.changed() is not None
