"""Ports: chosen from a range, remembered, and replaced only if a program holds them."""

from pathlib import Path

import pytest

from towpath.deploy.local import ports
from towpath.deploy.local.stack import NAMES, Stack
from towpath.sinks.errors import PrerequisiteError


def test_ports_are_remembered(tmp_path: Path) -> None:
    """
    Ports that were written can be read back.
    """
    known = {"kafka": 20_001, "redis": 20_002}

    ports.write_ports(tmp_path / "ports.json", known)

    assert known == ports.read_ports(tmp_path / "ports.json")


@pytest.mark.parametrize("content", ["", "{", "[1"])
def test_an_unreadable_file_counts_as_empty(tmp_path: Path, content: str) -> None:
    """
    A truncated file loses the remembered ports, but does not prevent the start.
    """
    (tmp_path / "ports.json").write_text(content, encoding="utf-8")

    assert ports.read_ports(tmp_path / "ports.json") == {}


def test_the_search_of_a_range_wraps_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A search from the middle finds a free port below if all above are taken.
    """
    monkeypatch.setattr(ports, "is_free", lambda port: port == 9201)

    assert ports.free_within(9201, 9299, 50) == 9201


def test_no_two_parts_get_the_same_port(tmp_path: Path, monkeypatch) -> None:
    """
    A port assigned to a part is not free, even if nothing listens on it yet.
    """
    monkeypatch.setattr(ports, "is_free", lambda _: True)
    monkeypatch.setattr(ports, "SERVER_PORTS", (20_001, 20_006))
    (tmp_path / "stack").mkdir()
    given = Stack(tmp_path)._settle_ports(NAMES)

    assert {*range(20_001, 20_007)} == {*given.values()} - {given["opensearch"]}
    assert [20_001, 20_002] == sorted(_pair(monkeypatch))


def _pair(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(ports, "SERVER_PORTS", (20_001, 20_002))
    return [*ports.free_ports_for(("orders", "relay")).values()]


def test_a_full_port_range_gives_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    If every port is taken, the error names the range.
    """
    monkeypatch.setattr(ports, "is_free", lambda _: False)

    with pytest.raises(PrerequisiteError, match="9201 to 9299"):
        ports.free_within(9201, 9299, 0)
