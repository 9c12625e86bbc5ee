"""Row transforms that a cluster's executors run, including a package's function."""

import signal

import pytest

from support.driver_process import live_fields, wait_applied
from support.verified_sink import VerifiedRig
from towpath.cli.app import run
from towpath.settings import load
from towpath.sinks.state.progress import progress_path, stored_progress

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(600)]

COLUMNS = "id int primary key, name text, email text, total numeric, state text"
FUNCTION = """
def order_size(row):
    if row["total"] is None:
        return None
    return {"size": "large" if float(row["total"]) >= 1000 else "small"}
"""
OPTIONS = """
driver = "cluster"
trigger_ms = 1000
max_batch_records = 1500
write_from = "executors"
spread_from_records = 300
hash_salts = { people = "0123456789abcdef" }
"""
TRANSFORMS = """
exclude = ["name"]
[[sink.route.transforms]]
template = "{id}: {name} {total}"
to = "label"
[[sink.route.transforms]]
hash = "email"
salt = "people"
[[sink.route.transforms]]
cast = "total"
type = "numeric(12, 1)"
to = "rounded"
[[sink.route.transforms]]
python = "order_size"
reads = ["total"]
writes = { size = "text" }
[[sink.route.transforms]]
drop_if = { state = "draft" }
"""
INSERT = """
insert into s.people
select n, 'name ' || n, 'p' || n || '@example.com',
    case when n % 50 > 0 then n + 0.25 end,
    case when n % 7 > 0 then 'live' else 'draft' end
from generate_series(1, 3000) n
"""
# Rows enter the sinks, leave them and change; executors write each statement's rows.
CHANGES = (
    "update s.people set state = 'draft' where id % 5 = 0",
    "update s.people set state = 'live', total = total * 2 where id % 7 = 0",
    "delete from s.people where id % 11 = 0",
    "update s.people set name = upper(name), total = 7 where id % 3 = 0",
)
KEPT = "select id from s.people where state = 'live' and total is not null"


class Rig(VerifiedRig):
    """A table of people, and three sinks that a cluster's driver writes to."""

    def add_sinks(self, urls, folder):
        """Configure a sink of each kind, with the same transforms."""
        for kind, url in urls.items():
            files = f'folder = "{folder}"\n' if kind == "warehouse" else ""
            block = (
                f'\n[[sink]]\nname = "{kind}"\nkind = "{kind}"\nurl = "{url}"\n'
                f'{files}{OPTIONS}[[sink.route]]\ntopic = "{self.prefix}.s.people"\n'
                f'name = "{self.prefix}.people"\n{TRANSFORMS}'
            )
            with self.config.open("a", encoding="utf-8") as file:
                file.write(block)
        self.kinds = list(urls)

    def catch_up_all(self):
        """Wait until all sinks have applied everything committed so far."""
        self.catch_up()
        settings = load(self.config, {})
        for name in self.kinds:
            wait_applied(settings, name)

    def stored(self, name):
        """Return the live rows of a sink, by key."""
        return live_fields(load(self.config, {}), name)

    def progress(self, name):
        """Read a sink's progress."""
        return stored_progress(progress_path(self.folder, name), name)

    def verified(self, capsys):
        """Run ``towpath verify`` on all sinks; return the exit code and the output."""
        capsys.readouterr()
        code = run(["verify", "--json", "--config", str(self.config)])
        return code, capsys.readouterr().out


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package with a transform, for this process and for those it starts."""
    folder = tmp_path / "package"
    about = folder / "shop_transforms-1.0.0.dist-info"
    about.mkdir(parents=True)
    (folder / "shop_transforms.py").write_text(FUNCTION, encoding="utf-8")
    (about / "METADATA").write_text("Name: shop-transforms\nVersion: 1.0.0\n")
    (about / "entry_points.txt").write_text(
        "[towpath.transforms]\norder_size = shop_transforms:order_size\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide a source with rows, and the configuration of three sinks."""
    stack.up("kafka", "redis", "postgres")
    made = Rig(database, stack.kafka, unique, tmp_path)
    made.prepare_source({"people": COLUMNS})
    urls = {
        "cache": stack.redis_url,
        "postgres": database,
        "warehouse": stack.dsn("warehouse"),
    }
    made.add_sinks(urls, tmp_path / "lake")
    made.init()
    made.execute(INSERT)
    yield made
    made.close()


@pytest.mark.usefixtures("package")
def test_executors_transform_rows_as_the_verifier_does(rig, request, capsys):
    """
    The rows come from a snapshot and from changes; executors write large batches.
    """
    cluster = request.getfixturevalue("cluster")
    rig.start()
    rig.signal("fill", data_collections=["s.people"])
    rig.wait_for_answer("fill")
    submitted = cluster.submit(rig.config, "cluster")
    cluster.wait_for(
        lambda: all(rig.progress(name).rows for name in rig.kinds), submitted
    )
    for statement in CHANGES:
        rig.execute(statement)
    rig.catch_up_all()
    spread = cluster.log("driver").count("writes large batches on the executors")
    code, printed = rig.verified(capsys)
    stored = [rig.stored(name) for name in rig.kinds]
    kept = rig.execute(KEPT)
    cluster.python_of(submitted).send_signal(signal.SIGTERM)

    assert 0 == submitted.wait(90), cluster.log("driver")[-3000:]
    assert (0, len(rig.kinds)) == (code, spread), printed
    assert len(rig.kinds) == printed.count('"result": "equal"')
    assert [{str(key) for (key,) in kept}] * 3 == [set(rows) for rows in stored]
    assert [("3: NAME 3 7", "7.0", "small")] * 3 == [
        (rows["3"]["label"], str(rows["3"]["rounded"]), rows["3"]["size"])
        for rows in stored
    ]
