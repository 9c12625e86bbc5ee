"""
Fixtures for all tests: one local stack per worker, one database per test.

A run is one process, or a controller and several concurrent workers, which share some
servers. The stack lives in a folder below the system's temporary folder; its parts
start when a test first requests their address. The worker removes its stack, and the
controller removes the shared servers; if either is killed, its watcher does so instead.
"""

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import uuid
from collections.abc import Iterator

import pytest
import structlog
import xdist
from hypothesis import Phase, settings

from support import databases, last_run, object_store, remains, workers
from support.shared_servers import SharedServers, SharingStack, shared_servers
from towpath.deploy.local.stack import LazyStack
from towpath.relay.commands import compiled
from towpath.settings import Route, Sink, SinkKind
from towpath.sinks.jars import java, store
from towpath.sinks.ports import SqlSession
from towpath.sinks.targets.warehouse.client import catalog_conf

# Collecting tests creates too little garbage to be worth collecting.
gc.disable()
# No deadline per example: on a busy machine, it would measure other processes.
settings.register_profile("dev", max_examples=200, deadline=None)
settings.register_profile("ci", max_examples=5_000, deadline=None)
# For planted defects: the same examples each time, without shrinking.
settings.register_profile(
    "mutants",
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
)
# A background job of a shell ignores Ctrl-C, and so would the processes of its tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# In engines that run for seconds, the JVM's second compiler costs more time than it
# saves, and so does the verification of bytecode: the lock file's hashes vouch for it.
os.environ.setdefault(  # noqa: TID251 - a root
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions"
    " -XX:-BytecodeVerificationRemote",
)
# The Python source is the reference, even if the setup has compiled some modules.
# TOWPATH_COMPILED=on makes tests, and the processes that they start, use those modules.
os.environ.setdefault(compiled.VARIABLE, "off")  # noqa: TID251 - a root
compiled.import_modules(os.environ)  # noqa: TID251 - a root
if os.environ[compiled.VARIABLE] != "off":  # noqa: TID251 - a root
    assert compiled.running() is compiled.Code.COMPILED, "run make setup first"
_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "dev")  # noqa: TID251 - a root
settings.load_profile(_PROFILE)
# For tables of a few rows, compiling a statement costs more than interpreting it, and
# additional tasks cost more than they save. Drivers that tests start have production
# settings.
_SMALL_TABLES = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_SHARED = pytest.StashKey[SharedServers]()
# 60 seconds for the examples of the default profile.
_PROPERTY_S = 0.3 * settings.get_profile(_PROFILE).max_examples


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session, config, items):
    """
    Mark tests by their folder and by their fixtures; a worker also orders them.

    A property has hundreds of examples: on a busy machine, the limit of a unit test is
    too short for it. PySpark leaves its sockets to Python's garbage collector, whose
    warning may appear only during a later test, even one that does not use Spark.
    """
    unclosed = pytest.mark.filterwarnings(
        r"ignore:unclosed <socket.*sock:ResourceWarning"
    )
    unclosed_before = pytest.mark.filterwarnings(
        r"ignore:unclosed <socket.*family=1,.*\.sock>:ResourceWarning"
    )
    for item in items:
        if "property" in item.path.parts:
            item.add_marker(pytest.mark.timeout(_PROPERTY_S))
        if item.get_closest_marker("spark"):
            item.add_marker(unclosed)
        elif not workers.is_quick(item.path):
            item.add_marker(unclosed_before)
    if xdist.is_xdist_worker(session):
        workers.put_in_order(items, float(config.getini("timeout")))


def pytest_collection_finish():
    """
    Exempt objects made by test collection from garbage collection: none is ever freed.

    From here on, the first worker takes precedence over the others.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    workers.lower_priority()


def pytest_xdist_make_scheduler(config, log):
    """Distribute the tests to the workers in pieces."""
    return workers.Pieces(config, log)


def pytest_configure_node(node):
    """Pass a worker the location of the servers that it shares with the others."""
    shared = node.config.stash.get(_SHARED, None)
    if shared is None:
        block = contextlib.ExitStack()
        shared = node.config.stash[_SHARED] = block.enter_context(shared_servers())
        node.config.add_cleanup(block.close)
    node.workerinput["shared_servers"] = tuple(shared)


def pytest_sessionfinish(session, exitstatus):
    """Store the duration of ``make test``."""
    last_run.keep(session, exitstatus)


@pytest.fixture(autouse=True)
def _own_logs(monkeypatch) -> Iterator[None]:
    """
    Restore logging after a test whose command configures it in this process.

    A cached logger would write to the captured stream of an earlier test.
    """
    configure = structlog.configure
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(
        structlog,
        "configure",
        lambda **given: configure(**given | {"cache_logger_on_first_use": False}),
    )
    yield
    root.handlers, root.level = handlers, level
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
def _remains(request) -> Iterator[None]:
    """Leave no process behind, even if pytest is killed; unit tests start none."""
    with contextlib.ExitStack() as block:
        if not all(workers.is_quick(item.path) for item in request.session.items):
            block.enter_context(remains.watched())
        yield


@pytest.fixture(scope="session")
def worker_stack() -> Iterator[LazyStack]:
    """Provide the worker's own stack, whose servers a test may stop and configure."""
    remains.collect_abandoned()
    folder = remains.new_folder()
    try:
        yield LazyStack(remains.stack_of(folder))
    finally:
        remains.purge(folder)


@pytest.fixture(scope="session")
def stack(worker_stack: LazyStack, request) -> LazyStack:
    """
    Provide the stack of most tests: ``.dsn(database)``, ``.kafka``, ``.redis_url``...

    With several workers, some of its servers are shared.
    """
    if not xdist.is_xdist_worker(request):
        return worker_stack
    shared = SharedServers(*request.config.workerinput["shared_servers"])
    return SharingStack(worker_stack.stack, shared)


@pytest.fixture
def unique() -> str:
    """Return a unique name, for databases, slots, topics and prefixes."""
    return f"t_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def database(stack: LazyStack, unique: str) -> Iterator[str]:
    """Provide the address of a fresh database."""
    with databases.fresh_database(stack, unique) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def lake(stack: LazyStack) -> Iterator[tuple[Sink, SqlSession]]:
    """
    Provide the worker's only Spark session, and the warehouse that it writes to.

    The sink that describes the warehouse has one route, which a test replaces with its
    own.
    """
    from towpath.sinks.engine import session  # noqa: PLC0415 - only some tests need Spark

    folder = stack.state_folder / "lake"
    folder.mkdir()
    sink = Sink(
        name="warehouse",
        kind=SinkKind.WAREHOUSE,
        url=stack.dsn("warehouse"),
        folder=folder / "warehouse",
        route=(Route(topic="none", name="none.none"),),
    )
    patch = pytest.MonkeyPatch()
    patch.setenv("JAVA_HOME", str(java.spark_home(folder / "java")))
    patch.setenv("PYSPARK_PYTHON", sys.executable)
    engine = session.Engine(
        name="towpath-tests",
        jars=(*store.of("spark").glob("*.jar"), object_store.connector()),
        folder=folder / "spark",
        memory="2g",
        extra=catalog_conf(sink) | _SMALL_TABLES,
        has_tables=True,
    )
    spark = session.start_session(engine)
    yield sink, session.SparkSql(spark)
    spark.stop()
    patch.undo()
