"""
When the reporting of runs to catalogs is off.
"""

import pytest

from towpath.schemas.lineage import NO_REPORTER, lineage_folders, start_lineage


@pytest.mark.parametrize(
    "environ",
    [
        {"OPENLINEAGE_URL": "no-address"},
        {"OPENLINEAGE__TRANSPORT__TYPE": "unknown"},
        {"OPENLINEAGE__TRANSPORT__TYPE": "kafka"},
    ],
)
def test_reporting_with_settings_that_openlineage_refuses_is_off(
    monkeypatch, tmp_path, environ
):
    """
    The process starts, and the reason is found.
    """
    monkeypatch.chdir(tmp_path)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = []
    reporter = start_lineage(environ, [tmp_path], found.append)

    assert (NO_REPORTER, 1) == (reporter, len(found))


def test_a_folder_that_cannot_be_read_has_no_lineage_file(monkeypatch, tmp_path):
    """
    A service with ProtectHome may not read its user's home.
    """

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.stat", refuse)

    assert NO_REPORTER is start_lineage({}, [tmp_path], pytest.fail)


def test_a_user_without_a_home_has_no_lineage_folder_there(monkeypatch):
    """
    As in a container whose user is a bare number.
    """
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 9)

    assert 1 == len(lineage_folders())
