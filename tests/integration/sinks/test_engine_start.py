"""Starting a driver: a killed Java process, and the class archive."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.configuration import configuration
from towpath.sinks.engine import classes
from towpath.sinks.jars import java

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(90)]

COMMAND = "from towpath.cli.app import main; main()"
# Starts the real program as Spark requested, and kills it.
KILLED = """#!/bin/sh
"{java}" "$@" &
kill -9 $!
wait $!
"""


def test_a_java_process_that_is_killed_while_starting_is_reported(
    tmp_path: Path, monkeypatch
):
    """
    The command prints one clear error with its remedy, and no traceback.
    """
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(KILLED.format(java=java.home() / "bin" / "java"))
    program.chmod(0o755)
    release = program.parents[1] / "release"
    release.write_text(f'JAVA_VERSION="{java.RELEASE}"\n')
    config = tmp_path / "towpath.toml"
    text = configuration("postgresql://x/y", "127.0.0.1:9", "p", ("s.t",))
    sink = (
        '[[sink]]\nname = "it"\nkind = "cache"\nurl = "redis://127.0.0.1:9"\n'
        '[[sink.route]]\ntopic = "p.s.t"\nname = "t"\n'
    )
    config.write_text(f"{text}\n{sink}")
    monkeypatch.setenv("JAVA_HOME", str(program.parents[1]))
    command = ("sink", "run", "it", "--config", str(config))
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *command],
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )
    printed = done.stdout + done.stderr

    assert "did not start" in printed, printed[-3000:]
    assert "remedy" in printed
    assert "Traceback" not in printed
    assert done.returncode == 3


def test_a_recording_that_java_refuses_keeps_the_previous_archive(
    tmp_path: Path, monkeypatch
):
    """
    Java exits with 0 and writes no archive; drivers still start without one.
    """
    previous = tmp_path / "classes" / "spark-previous.jsa"
    previous.parent.mkdir()
    previous.touch()
    wanted = previous.with_name("spark-wanted.jsa")
    monkeypatch.setattr(classes.java, "spark_classes", lambda: wanted)
    monkeypatch.setattr(classes.sys, "executable", "/bin/true")
    reports = []

    assert (None, 1) == (classes.ensure(reports.append), len(reports))
    assert [previous] == list(previous.parent.iterdir())


# Starts an engine, and prints the class archives that Java has mapped.
STARTED = """
from pathlib import Path
from sys import argv
from towpath.sinks.engine import session
spark = session.start_session(session.Engine("e", (), Path(argv[1]), "512m", {}, False))
maps = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read_text()
print(*{line.split()[-1] for line in maps.splitlines() if line.endswith(".jsa")})
"""


def test_the_engine_uses_the_recorded_class_archive(tmp_path: Path, monkeypatch):
    """
    The setup has recorded the archive; the engine's Java process has mapped it.
    """
    monkeypatch.setenv("JAVA_HOME", str(java.spark_home(tmp_path / "java")))
    done = subprocess.run(
        [sys.executable, "-c", STARTED, str(tmp_path / "engine")],
        capture_output=True,
        text=True,
        timeout=80,
        check=True,
    )

    assert str(java.spark_classes()) in done.stdout.split(), done.stderr[-3000:]
