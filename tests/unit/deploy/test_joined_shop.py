"""A demo that joins a platform: it reports a missing shop, and stops only itself."""

from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from rich.console import Console

from towpath.deploy.bench import checkout
from towpath.deploy.demo import compare, parts, platform, run
from towpath.deploy.demo.stage import DemoOptions, JoinedPlatform
from towpath.deploy.errors import SourceUnreachableError, StepError
from towpath.deploy.local import own_stack, process
from towpath.deploy.local.part import Part, StateFolder


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (psycopg.errors.UndefinedTable("no relation shop.orders"), StepError),
        (psycopg.errors.InsufficientPrivilege("not shop.orders"), StepError),
        (
            psycopg.OperationalError("no server, so no shop.orders"),
            SourceUnreachableError,
        ),
    ],
)
def test_a_shop_that_cannot_be_read_is_reported(failure, expected, monkeypatch):
    """
    ``towpath demo --join`` may name a wrong database, and a source may restart.
    """

    @contextmanager
    def failing(_dsn):
        raise failure
        yield

    monkeypatch.setattr(platform, "connected", failing)

    with pytest.raises(expected, match=r"shop\.orders"):
        platform.count_orders("x")
    with pytest.raises(expected, match=r"shop\.orders"):
        compare.sagas(SimpleNamespace(shop_dsn="x"), 1)
    with pytest.raises(expected, match=r"shop\.orders"):
        checkout.saga_times("x", 1)


def test_a_joined_demo_stops_only_its_load(tmp_path, monkeypatch):
    """
    ``towpath demo --keep`` may run the joined platform in the same state folder.
    """
    state = StateFolder(tmp_path)
    state.create()
    files = {name: state.process_file(name) for name in ("kafka", parts.LOAD)}
    shop = SimpleNamespace(database=SimpleNamespace(dsn=""))

    def start(*_):
        for name in files:
            part = Part(name=name, command=("/bin/sleep", "60"), folder=tmp_path)
            process.start(part, state)
        message = "the load fails"
        raise StepError(message)

    monkeypatch.setattr(run, "load", lambda *_: shop)
    monkeypatch.setattr(platform, "count_orders", lambda _: 0)
    monkeypatch.setattr(run, "_run_joined", start)
    monkeypatch.setattr(run, "kill_children", lambda _: None)
    joined = JoinedPlatform(Path("towpath.toml"), "http://orders", {})
    try:
        with pytest.raises(StepError):
            run.run_joined(DemoOptions(), joined, tmp_path, Console())
        found = {name: process.find(file) is not None for name, file in files.items()}
    finally:
        for file in files.values():
            process.stop(file, within_s=1.0)

    assert {"kafka": True, parts.LOAD: False} == found


def test_a_joined_demo_accepts_relative_paths(tmp_path, monkeypatch):
    """
    The default state folder is relative, and the demo's processes run in it.
    """
    seen = []

    def join(_options, at, state, _console):
        seen.extend((at.config, state.root))
        message = "that is all"
        raise StepError(message)

    shop = SimpleNamespace(database=SimpleNamespace(dsn=""))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "load", lambda *_: shop)
    monkeypatch.setattr(platform, "count_orders", lambda _: 0)
    monkeypatch.setattr(run, "_run_joined", join)
    monkeypatch.setattr(run, "kill_children", lambda _: None)
    joined = JoinedPlatform(Path("towpath.toml"), "http://orders", {})
    with pytest.raises(StepError):
        run.run_joined(DemoOptions(), joined, Path("state"), Console())

    assert [tmp_path / "towpath.toml", tmp_path / "state"] == seen


def test_a_joined_demo_uses_the_platforms_overrides(tmp_path, monkeypatch):
    """
    A platform in containers has its addresses only in variables.
    """
    overrides = {"TOWPATH_SOURCE__DSN": "postgresql://elsewhere/shop"}
    config = tmp_path / "towpath.toml"
    config.write_text(
        'version = 1\n[[source]]\ndsn = "postgresql://here/shop"\n'
        '[kafka]\nbootstrap_servers = "kafka:9092"\n'
    )
    seen = []

    def wait(stage):
        seen.extend((stage.shop_dsn, stage.environment["TOWPATH_SOURCE__DSN"]))
        message = "that is all"
        raise StepError(message)

    monkeypatch.setattr(platform, "count_orders", lambda dsn: seen.append(dsn) or 0)
    monkeypatch.setattr(platform, "wait_for_sinks", wait)
    monkeypatch.setattr(run, "Monitor", lambda _stage: nullcontext())
    monkeypatch.setattr(run, "kill_children", lambda _: None)
    joined = JoinedPlatform(config, "http://orders", overrides)
    with pytest.raises(StepError):
        run.run_joined(DemoOptions(), joined, tmp_path / "state", Console())

    assert ["postgresql://elsewhere/shop"] * 3 == seen


def test_only_variables_that_override_a_key_are_overrides(monkeypatch):
    """
    ``TOWPATH_CONFIG`` and ``TOWPATH_STATE`` are for the command itself.
    """
    for name in ("TOWPATH_KAFKA__CLIENT__X", "TOWPATH_CONFIG", "KAFKA__X"):
        monkeypatch.setenv(name, "x")

    assert {"TOWPATH_KAFKA__CLIENT__X": "x"} == own_stack.overrides()
