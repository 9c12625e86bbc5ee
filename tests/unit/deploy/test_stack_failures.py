"""The error of a stack whose parts did not start."""

import errno

import pytest

from towpath.deploy.errors import PartError, StateFolderError
from towpath.deploy.local import lifecycle, postgres
from towpath.deploy.local.ports import write_ports
from towpath.deploy.local.stack import Stack
from towpath.sinks.errors import JarsError


def failing(monkeypatch, failures):
    """Make the start of each part fail."""

    def bring_up(_stack, part, *_):
        raise failures[part.name]

    monkeypatch.setattr(Stack, "_bring_up", bring_up)


def test_the_only_failure_keeps_its_remedy(monkeypatch, tmp_path):
    """
    No log would mention a missing archive.
    """
    missing = JarsError("kafka.jar is missing")
    failing(monkeypatch, {"redis": missing})
    with pytest.raises(JarsError) as raised:
        Stack(tmp_path).up(["redis"])

    assert missing is raised.value


def test_several_failures_are_reported_together(monkeypatch, tmp_path):
    """
    Each part has its own line.
    """
    failing(monkeypatch, {"redis": PartError("one"), "postgres": JarsError("two")})
    with pytest.raises(PartError, match="one\ntwo"):
        Stack(tmp_path).up(["redis", "postgres"])


def test_a_part_that_finds_the_disk_full_has_failed(monkeypatch, tmp_path):
    """
    A full disk gives one clear error with the file that cannot be written.
    """

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "redis.log")

    monkeypatch.setattr(lifecycle, "bring_up", full)
    with pytest.raises(PartError, match=r"redis cannot be started: .* 'redis\.log'"):
        Stack(tmp_path).up(["redis"])


@pytest.mark.parametrize("act", [Stack.down, lambda stack: stack.up(["redis"])])
def test_a_state_folder_that_cannot_be_locked_gives_one_clear_error(act, tmp_path):
    """
    It may belong to a different user, such as root.
    """
    (tmp_path / "stack" / "lock").mkdir(parents=True)
    with pytest.raises(StateFolderError, match="lock: Is a directory"):
        act(Stack(tmp_path))


def test_a_folder_without_a_stack_is_not_purged(tmp_path):
    """
    ``towpath down --purge --state .`` may be run in a project's folder.
    """
    kept = [tmp_path / "logs" / "own.log", tmp_path / "stack" / "redis" / "own.txt"]
    for file in kept:
        file.parent.mkdir(parents=True)
        file.touch()
    Stack(tmp_path).purge()

    assert [True, True] == [file.exists() for file in kept]


def test_a_stack_is_purged_with_its_logs(tmp_path, monkeypatch):
    """
    Only other files in the state folder are kept, such as the configuration.
    """
    monkeypatch.setattr(postgres, "remove_home", lambda _: None)
    monkeypatch.setattr(Stack, "down", lambda *_, **__: None)
    stack = Stack(tmp_path)
    stack.state.create()
    write_ports(stack.state.stack / "ports.json", {"redis": 20_000})
    (tmp_path / "towpath.toml").touch()
    (stack.state.data("redis")).mkdir()
    stack.purge()

    assert ["towpath.toml"] == [path.name for path in tmp_path.iterdir()]
