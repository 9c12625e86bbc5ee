"""The guide to writing a sink, followed to the letter."""

import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.dead_letters import Letters, context_of
from support.kafka_rows import row, table
from support.rig import Rig
from support.slice_tasks import ListedTasks, batch_rows
from support.waiting import TIMEOUT_S
from towpath.cli import app as commands
from towpath.deploy.sinks import lifecycle
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import ConfigurationError
from towpath.settings import Sink
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.apply.bisect import Delivery
from towpath.sinks.apply.task import AbandonedTasks
from towpath.sinks.change import ALL_PRESENT, Change, Floor, Origin
from towpath.sinks.changes.routing import Routes
from towpath.sinks.engine.executors import Executors
from towpath.sinks.engine.writer import SinkWriter
from towpath.sinks.kinds import SinkParts, check_kinds, kind_of
from towpath.sinks.ports import Batch
from towpath.testing import ContractSuite, memory_target

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

TOPIC = "towpath.shop.orders"
FILL = f"{TOPIC}.backfill.file"
GUIDE = Path(__file__).parents[3] / "docs/own-sink.md"
_FILE = """
version = 1
[[source]]
dsn = "postgresql://localhost/shop"
[kafka]
bootstrap_servers = "localhost:9092"
[registry]
url = "http://localhost:8080"
"""
_BLOCK = re.compile(r"(?ms)^`([\w.]+)`(?:, continued)?\n\n```\w+\n(.*?)^```$")


def written(folder: Path) -> Path:
    """Write the guide's files, and the metadata that an installer would write."""
    for name, text in _BLOCK.findall(GUIDE.read_text(encoding="utf-8")):
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write(text)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    metadata = folder / "towpath_sqlite-0.1.0.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\n"
        f"Version: {project['version']}\n"
    )
    points = project["entry-points"]["towpath.sinks"]
    lines = [f"{name} = {value}\n" for name, value in points.items()]
    metadata.joinpath("entry_points.txt").write_text(
        "[towpath.sinks]\n" + "".join(lines)
    )
    return folder


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """Install the guide's package."""
    folder = written(tmp_path)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "sqlite_sink", raising=False)
    return folder


@pytest.fixture
def sink_settings(package) -> Sink:
    """Provide the settings of the guide's sink."""
    block = tomllib.loads((package / "sink.toml").read_text())["sink"][0]
    return Sink.model_validate({**block, "url": str(package / "rows.db")})


def test_the_guide_has_at_most_seven_steps():
    """
    An eighth step would be a sign of a bad interface.
    """
    steps = re.findall(r"^## (\d+)\.", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)

    assert [str(n) for n in range(1, len(steps) + 1)] == steps
    assert 5 <= len(steps) <= 7


def test_the_guides_sink_passes_the_contract(tmp_path):
    """
    The guide's own test, run from its folder, passes all cases of the contract.
    """
    folder = written(tmp_path)
    found = run_contract(folder)
    cases = sum(name.startswith("test_") for name in dir(ContractSuite))

    assert (0, True) == (found.returncode, f"{cases} passed" in found.stdout), (
        found.stdout
    )


def run_contract(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the guide's own test from its folder."""
    paths = ":".join([str(folder), *(p for p in sys.path if p)])
    left_out = ("-p", "no:cacheprovider", "-p", "no:schemathesis")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *left_out, "."],
        cwd=folder,
        env={"PYTHONPATH": paths, "PATH": "/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=80,
    )


def test_a_sink_without_its_transaction_fails_the_contract(tmp_path):
    """
    Without the transaction, a call that fails is applied in part.
    """
    folder = written(tmp_path)
    module = folder / "sqlite_sink.py"
    text = module.read_text()
    assert text.count('execute("begin immediate")') == 1
    text = text.replace('        self._database.execute("begin immediate")\n', "")
    text = text.replace("            self._database.rollback()\n", "")
    module.write_text(text)
    done = run_contract(folder)

    assert 1 == done.returncode, done.stdout
    assert "1 failed" in done.stdout
    assert "test_a_call_that_fails_midway_is_not_counted" in done.stdout


def test_the_guides_sink_is_written_by_tasks(sink_settings):
    """
    Each of two partitions is a task; the driver reads back the rows of both.
    """
    kind = kind_of(sink_settings)
    spread = sink_settings.model_copy(update={"spread_from_records": 1})
    here = kind.make(sink_settings, None)
    here.open()
    context = context_of(Letters())
    writer = RecordWriter(Routes(spread), here, context)
    executors = Executors(
        *(spread, lambda: kind.spread(sink_settings, None)),
        AbandonedTasks(SystemClock(), is_first_run=True),
    )
    rows = [row(n, "c", order=n, topic=TOPIC, note="a") for n in range(1, 8)]
    filled = [row(n, "r", order=n, topic=FILL, note="b") for n in range(8, 11)]
    given = table(*rows, *filled)
    result = SinkWriter(writer, here, context, executors).write(
        batch_rows(given, ListedTasks(given)), 0
    )
    reader = kind.read(sink_settings, "towpath")
    stored = {found.key for found in reader.rows("orders")}
    reader.close()
    here.close()

    assert (10, 10, 0) == (result.records, result.rows, result.left)
    assert {str(n) for n in range(1, 11)} == stored


def test_the_guides_sink_is_made_written_and_read_back(sink_settings):
    """
    From the kind alone, a driver makes the sink, and the verifier reads its rows.
    """
    check_kinds([sink_settings])
    kind = kind_of(sink_settings)
    target = memory_target()
    sink = kind.make(
        sink_settings,
        SinkParts(
            prefix="towpath",
            replay_window_s=3600,
            folder=Path("unused"),
            relations=target.relations,
            clock=SystemClock(),
            repairs=None,
            sql=None,
        ),
    )
    sink.open()
    origin = Origin("towpath.shop.orders", 0, 0)
    change = Change(
        *("orders", (7,), ("order_id",), "0000000000000010.0000000000"),
        *({"order_id": 7}, ALL_PRESENT, False, origin),
    )
    floor = Floor("orders", "0000000000000008.-", needs_all=False, origin=origin)
    done = Delivery(sink, SystemClock()).deliver(Batch(0, (change,), floors=(floor,)))
    sink.close()
    reader = kind.read(sink_settings, "towpath")
    (row,) = reader.rows("orders")
    reader.close()

    assert (1, "7", {"order_id": 7}) == (done.applied, row.key, row.fields)


def test_the_guides_sink_refuses_options_that_it_does_not_know(sink_settings):
    """
    The options of a kind are checked like any other key.
    """
    wrong = sink_settings.model_copy(update={"options": {"color": "red"}})
    with pytest.raises(ConfigurationError, match=r"file.options.color: unknown"):
        check_kinds([wrong])


def test_the_guides_sink_is_checked_with_the_whole_configuration(package, capsys):
    """
    The command that checks the file lets the package check its options.
    """
    block = (package / "sink.toml").read_text()
    options = '[sink.options]\ncolor = "red"\n\n[[sink.route]]'
    path = package / "towpath.toml"
    path.write_text(_FILE + block.replace("[[sink.route]]", options))
    code = commands.run(["config", "check", "--config", str(path)])
    printed = capsys.readouterr().err
    path.write_text(_FILE + block)

    assert (2, True, 0) == (
        code,
        "sink.file.options.color: unknown option" in printed,
        commands.run(["config", "check", "--config", str(path)]),
    )


def arguments_of_step_seven() -> list[list[str]]:
    """Return the arguments of each command, without the program's name."""
    text = GUIDE.read_text(encoding="utf-8").partition("\n## 7.")[2]
    lines = text.partition("```sh\n")[2].partition("```")[0].splitlines()
    return [line.removeprefix("towpath ").split() for line in lines]


@pytest.fixture
def system(stack, database, unique, package, monkeypatch) -> Iterator[Rig]:
    """
    Provide a running system that imports from the package's folder, without a sink.
    """
    stack.up("kafka")
    monkeypatch.chdir(package)
    found = ":".join([str(package), *filter(None, sys.path)])
    monkeypatch.setenv("PYTHONPATH", found)
    rig = Rig(database, stack.kafka, unique, package)
    rig.execute("create schema shop")
    rig.execute("create table shop.orders (order_id int primary key, status text)")
    rig.execute(
        "insert into shop.orders select n, 'placed' from generate_series(1, 50) n"
    )
    rig.configure(tables=["shop.orders"])
    rig.init()
    rig.start()
    rig.wait_for(lambda: bool(rig.logged("relay started")))
    yield rig
    rig.close()


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_the_guides_sink_is_added_to_a_running_system(system, capfd, monkeypatch):
    """
    The commands of the last step run exactly as in the guide, and in its order.
    """
    # On a busy machine the driver needs more than a minute to start.
    monkeypatch.setattr(lifecycle, "RUNNING_WITHIN_S", TIMEOUT_S)
    block = system.folder / "sink.toml"
    block.write_text(block.read_text().replace("towpath.shop", f"{system.prefix}.shop"))
    (*run, behind), *others = arguments_of_step_seven()
    system.confirm()
    program = "import sys; from towpath.cli.app import main; main()"
    driver = subprocess.Popen([sys.executable, "-c", program, *run])
    try:
        codes = [commands.run(arguments) for arguments in others]
        system.execute("delete from shop.orders where order_id = 7")
        system.execute("insert into shop.orders values (51, 'paid')")
        system.confirm()
        later = commands.run(others[-1])
        driver.terminate()
        ended = driver.wait(60)
    finally:
        driver.kill()
        driver.wait(10)
    printed = capfd.readouterr()

    assert (["sink", "sink", "verify"], "&") == (
        [run[0], *(arguments[0] for arguments in others)],
        behind,
    )
    assert ([0, 0], 0, 0) == (codes, later, ended), printed


def test_the_guides_sink_reports_a_missing_file(package):
    """
    SQLite's error is translated into an error that is retried.
    """
    module = importlib.import_module("sqlite_sink")
    with pytest.raises(module.TargetUnavailableError, match="cannot be used"):
        module.SqliteSink(str(package / "none" / "rows.db")).open()

    assert [] == list(package.rglob("*.db"))
