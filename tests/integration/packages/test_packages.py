"""The built packages have the right contents, and each works when installed alone."""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from support.driver_process import PATIENCE_S, Feed, Place
from support.rig import Rig
from support.waiting import until
from towpath.sinks.jars import store

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
VERSION = (ROOT / "VERSION").read_text("utf-8").strip()
MEMBERS = sorted(path.parent.name for path in ROOT.glob("*/pyproject.toml"))
_SPEC = importlib.util.spec_from_file_location("dist", ROOT / "deploy/dist.py")
dist = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(dist)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Build all packages once, and return their folder."""
    out = tmp_path_factory.mktemp("packages") / "dist"
    assert 0 == dist.main([str(out)])
    return out


class Machine:
    """A virtual environment with only the given packages, and without the clone."""

    def __init__(self, folder: Path, wheels: Path, *packages: str) -> None:
        self.bin = folder / "environment" / "bin"
        command = (sys.executable, "-m", "venv", "--without-pip", self.bin.parent)
        subprocess.run(command, check=True)
        pins = folder / "pins.txt"
        lock = (ROOT / "requirements/run.lock").read_text("utf-8")
        pins.write_text("\n".join(re.findall(r"^[^\s#-][^\\\n]*", lock, re.MULTILINE)))
        self.pip(
            *("install", "--quiet", "--no-compile", "--find-links", wheels),
            *("--constraint", pins, *packages),
        )

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables of its programs: no path leads to the clone."""
        left_out = {"PYTHONPATH", "VIRTUAL_ENV"}
        kept = {k: v for k, v in os.environ.items() if k not in left_out}  # noqa: TID251 - a separate process
        return kept | {"PATH": f"{self.bin}:/usr/bin:/bin"}

    def run(self, program: str, *arguments: object, code: int = 0) -> str:
        """Run a program of the environment outside the clone; return its output."""
        done = subprocess.run(
            [self.bin / program, *map(str, arguments)],
            env=self.environ,
            cwd=self.bin.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert code == done.returncode, done.stdout
        return done.stdout

    def pip(self, *arguments: object) -> str:
        """Run the project's own pip on the environment; return its output."""
        pip = (sys.executable, "-m", "pip", "--python", self.bin / "python")
        done = subprocess.run(
            [*pip, *map(str, arguments)], capture_output=True, text=True, check=False
        )
        assert 0 == done.returncode, done.stderr
        return done.stdout

    def installed(self) -> set[str]:
        """Return the names of all installed packages."""
        return {one["name"] for one in json.loads(self.pip("list", "--format", "json"))}


def digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file."""
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()
    }


def wheels(folder: Path) -> dict[str, zipfile.ZipFile]:
    """Open the wheels, and return them by member."""
    found = {}
    for path in folder.glob("*.whl"):
        found[path.name.split("-")[0].removeprefix("towpath_")] = zipfile.ZipFile(path)
    return found


@pytest.mark.soak
def test_a_second_build_produces_the_same_bytes(built, tmp_path):
    """
    Wheels, source distributions and SBOMs do not depend on the umask.
    """
    before = os.umask(0o077)
    try:
        dist.make(tmp_path / "again", dist.KINDS)
    finally:
        os.umask(before)

    assert digests(built) == digests(tmp_path / "again")


def test_every_member_has_a_wheel_and_a_source_distribution(built):
    """
    Each wheel has a license, a README and ``py.typed``, and pins the members it needs.
    """
    for member, wheel in wheels(built).items():
        info = f"towpath_{member}-{VERSION}.dist-info"
        about = message_from_bytes(wheel.read(f"{info}/METADATA"))
        names = set(wheel.namelist())
        project = tomllib.loads((ROOT / member / "pyproject.toml").read_text("utf-8"))
        wanted = {
            f"{name}=={VERSION}"
            for name in project["project"]["dependencies"]
            if name.startswith("towpath-")
        }
        required = about.get_all("Requires-Dist") or []
        always = {one for one in required if ";" not in one}

        assert {f"{info}/licenses/LICENSE", f"towpath/{member}/py.typed"} <= names
        assert f"# towpath-{member}" in about.get_payload()
        assert wanted == {one for one in always if one.startswith("towpath-")}

    assert MEMBERS == sorted(wheels(built))
    assert len(MEMBERS) == len(list(built.glob("*.tar.gz")))


def test_no_file_is_in_two_wheels(built):
    """
    All wheels share the namespace ``towpath``, which must not have an ``__init__.py``.
    """
    owners = {}
    for member, wheel in wheels(built).items():
        for name in wheel.namelist():
            owners.setdefault(name, []).append(member)

    assert {} == {name: two for name, two in owners.items() if len(two) > 1}
    assert "towpath/__init__.py" not in owners


def test_the_wheel_of_the_services_has_their_pages_schemas_and_migrations(built):
    """
    Templates, scripts and styles of the storefront are the same as in the clone.
    """
    wheel = wheels(built)["services"]
    source = ROOT / "services/src"
    files = {
        path.relative_to(source).as_posix(): path.read_bytes()
        for folder in ("storefront/templates", "storefront/static", "*/schemas")
        for path in source.glob(f"towpath/services/{folder}/*")
        if path.is_file()
    }
    kinds = {name.rpartition(".")[2] for name in files}

    assert {"html", "css", "js", "svg", "avsc"} <= kinds
    assert files == {name: wheel.read(name) for name in files}
    assert len([n for n in wheel.namelist() if "/migrations/v" in n]) >= 7


def test_a_wheel_from_a_source_distribution_is_the_same(built, tmp_path):
    """
    A source distribution contains everything that its build needs.
    """
    for path in built.glob("*.tar.gz"):
        with tarfile.open(path) as archive:
            store.refuse_outside_paths(archive)
            archive.extractall(tmp_path)  # noqa: S202 - our own
        folder = tmp_path / path.name.removesuffix(".tar.gz")
        dist.build(folder, tmp_path / "again", dist.commit_time(), dist.KINDS)
    again = digests(tmp_path / "again")

    assert {n: d for n, d in digests(built).items() if n.endswith(".whl")} == {
        n: d for n, d in again.items() if n.endswith(".whl")
    }


def test_the_sboms_list_every_locked_package(built):
    """
    Every locked package is a component with its version and a hash.
    """
    names = [path.stem for path in dist.LOCKS]
    assert ["inbox", "outbox", "relay", "services", "sinks", "tools"] == sorted(names)
    for path in dist.LOCKS:
        lock = path.read_text("utf-8")
        pins = re.compile(r"^([\w.-]+)(?:\[.*?\])?==([^\s;]+)", re.MULTILINE)
        locked = set(pins.findall(lock))
        document = json.loads(
            (built / f"towpath-{path.stem}.cdx.json").read_text("utf-8")
        )
        found = {(one["name"], one["version"]) for one in document["components"]}

        assert locked == found
        assert all(one["externalReferences"] for one in document["components"])


def test_an_sbom_that_its_schema_forbids_is_refused(built, tmp_path):
    """
    One of two SBOMs has an invalid URL; the error names its file.
    """
    document = json.loads((built / "towpath-outbox.cdx.json").read_text("utf-8"))
    document["components"] = document["components"][:1]
    for name in ("first", "second"):
        (tmp_path / f"{name}.cdx.json").write_text(json.dumps(document), "utf-8")
    dist.check_sboms(tmp_path)
    document["components"][0]["externalReferences"][0]["url"] = "not an address"
    (tmp_path / "second.cdx.json").write_text(json.dumps(document), "utf-8")

    with pytest.raises(dist.SbomError, match="second"):
        dist.check_sboms(tmp_path)


_RECORD = """
import sys, psycopg2
from towpath.outbox import Events, Outbox
outbox = Outbox(Events(unknown="none"))
connection = psycopg2.connect(sys.argv[1])
with connection:
    connection.cursor().execute("create table post (id int)")
    connection.cursor().execute("insert into post values (7)")
    outbox.record(connection, {"aggregate_type": "post", "aggregate_id": "7",
        "type": "PostViewed", "payload": {"post_id": 7}})
"""


def test_the_outbox_alone_records_an_event(built, tmp_path, database):
    """
    The library needs no driver other than psycopg2, no Kafka client, and no framework.
    """
    machine = Machine(tmp_path, built, "towpath-outbox", "psycopg2-binary")
    rig = Rig(database, "localhost:1", "unused", tmp_path)
    rig.execute("create schema towpath")
    rig.execute(
        "create table towpath.outbox (id uuid primary key, aggregate_type text,"
        " aggregate_id text, type text, payload jsonb, headers jsonb,"
        " traceparent text, occurred_at timestamptz default now())"
    )
    machine.run("python", "-c", _RECORD, database)

    assert [("PostViewed", "7")] == rig.execute(
        "select type, aggregate_id from towpath.outbox, post"
    )
    ours = {"towpath-outbox", "towpath-schemas", "fastavro", "psycopg2-binary"}
    assert ours == machine.installed()
    rig.close()


def test_the_outbox_alone_checks_schemas(built, tmp_path):
    """
    The command works without the packages of the relay, the sinks or Postgres.
    """
    machine = Machine(tmp_path, built, "towpath-outbox[cli]")
    schemas = machine.bin.parent / "schemas"
    shutil.copytree(ROOT / "docs/examples/blog/schemas", schemas)

    machine.run("towpath", "schema", "check", code=1)
    assert "frozen: post_published" in machine.run("towpath", "schema", "freeze")
    machine.run("towpath", "schema", "check")
    check = ("check", "--registry", "http://127.0.0.1:1")
    assert "cannot be reached" in machine.run("towpath", "schema", *check, code=3)
    ours = {name for name in machine.installed() if name.startswith("towpath")}
    assert ours == {
        f"towpath-{one}" for one in ("outbox", "cli", "settings", "schemas")
    }


def test_the_relay_alone_publishes_rows(built, tmp_path, database, stack, unique):
    """
    The commands prepare a source and publish; `sink run` names the missing package.
    """
    machine = Machine(tmp_path, built, "towpath-relay")
    rig = Rig(database, stack.kafka, unique, tmp_path)
    rig.execute("create table post (id int primary key, title text)")
    rig.configure(tables=["public.post"])
    machine.run("towpath", "relay", "init", "--config", rig.config)
    with (tmp_path / "relay.log").open("wb") as log:
        relay = subprocess.Popen(
            [machine.bin / "towpath", "relay", "run", "--config", rig.config],
            env=machine.environ,
            stdout=log,
            stderr=log,
        )
    try:
        rig.execute("insert into post select n, 'a' from generate_series(1, 5) n")
        keys = [json.loads(m.key())["id"] for m in rig.read("public.post", at_least=5)]
        assert [1, 2, 3, 4, 5] == sorted(keys)
    finally:
        relay.terminate()
        assert 0 == relay.wait(60)
        rig.close()

    missing = machine.run("towpath", "sink", "run", "cache", code=2)
    assert "pip install towpath-sinks" in missing
    assert "sink" not in machine.run("towpath", "--help").split()
    assert not {"towpath-sinks", "towpath-deploy"} & machine.installed()


@pytest.mark.spark
def test_the_sinks_alone_run_a_sink(built, tmp_path, stack, unique):
    """
    The command fills a cache, using Spark's locked archives.
    """
    machine = Machine(tmp_path, built, "towpath-sinks[java]")
    place = Place(stack, unique, tmp_path)
    place.write_config(place.sink("cache", "cache", stack.redis_url))
    feed = Feed(place)
    environ = machine.environ | {"TOWPATH_JARS": str(store.folder())}
    environ.pop("TOWPATH_SPARK_JARS", None)
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [machine.bin / "towpath", "sink", "run", "cache", "--config", place.config],
            env=environ,
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )
    try:
        feed.put(1, "c", {"status": "placed", "note": "n"})
        feed.flush()
        until(
            lambda: place.cached() or driver.poll() is not None,
            "the row is in the cache",
            timeout_s=PATIENCE_S,
        )
        assert 1 == len(place.cached()), place.log()
    finally:
        driver.terminate()
        assert 0 == driver.wait(60), place.log()

    assert not {"towpath-relay", "towpath-deploy"} & machine.installed()
