"""
The whole of ``compose.yaml`` on a real engine, from its images to its last volume.

The tests form one scenario and run in order: each begins with the state that the
previous one leaves behind. ``make compose-test`` runs them; they need an engine
(``engine.py``).
"""

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from typing import Any

import pytest
from compose import stand_ins
from compose.engine import CLONE, attempt, docker, engine, inspect

from support.waiting import until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]

PROJECT = "towpath-test"
VERSION = (CLONE / "VERSION").read_text("utf-8").strip()
SERVICES = ("orders", "inventory", "payments", "shipping")
OWN_PARTS = ("relay", "serving", "warehouse", *SERVICES, "storefront", "console")
THIRD_PARTIES = (
    *("postgres", "kafka", "registry", "opensearch", "redis", "store", "catalog"),
)
SPARK = ("spark-master", "spark-worker")
BASE = "python:3.11.14-slim-bookworm"
SHOP = "http://orders:8000"
PAGE = "http://127.0.0.1:8089"
CONSOLE = "http://127.0.0.1:8070"
ENV = CLONE / "deploy" / "compose" / ".env"
FILL = "fill-1"
MONITORING = {"prometheus": "prom/prometheus", "grafana": "grafana/grafana"}
PROMETHEUS = "http://127.0.0.1:9090/api/v1"
STATUS = "select status from towpath.signal where id = 'fill-1'"


def compose(*arguments: str, within_s: float = 900.0) -> str:
    """
    Run a Compose command in the test's project; if it fails, show unhealthy containers.
    """
    done = try_compose(*arguments, within_s=within_s)
    assert done.returncode == 0, (
        f"{arguments}: {done.stdout}{done.stderr}{_unhealthy()}"
    )
    return done.stdout


def try_compose(*arguments: str, within_s: float = 900.0):
    """Run a Compose command; return its result, even if it fails."""
    return attempt(*_command(arguments), within_s=within_s)


def _command(arguments) -> tuple[str, ...]:
    project = ("--project-directory", "deploy/compose", "--project-name", PROJECT)
    return ("compose", "--progress", "quiet", *project, *arguments)


def _unhealthy() -> str:
    """
    Return the last log lines of every container that is neither healthy nor exited.
    """
    columns = "{{.ID}} {{.Service}} {{.State}} {{.Health}}"
    listed = try_compose("ps", "--all", "--format", columns).stdout.splitlines()
    found = []
    for fields in map(str.split, listed):
        if fields[2] != "exited" and fields[-1] != "healthy":
            logs = attempt("logs", "--tail", "20", fields[0])
            found.append(f"\n{' '.join(fields)}\n{logs.stdout}{logs.stderr}")
    return "".join(found)


def container(service: str) -> str:
    """Return the id of a service's container, running or not."""
    return compose("ps", "--all", "--quiet", service).split()[0]


def page(path: str, form: dict | None = None) -> bytes:
    """
    Read locust's page, or submit a form to it, as a browser does.

    A request to stop is answered once the users have finished and all samples are read.
    """
    data = None if form is None else urllib.parse.urlencode(form).encode()
    with urllib.request.urlopen(f"{PAGE}/{path}", data, timeout=180) as response:  # noqa: S310 - our own
        return response.read()


def load_stats() -> dict:
    """Return locust's state, and its statistics by the names of their rows."""
    stats = json.loads(page("stats/requests"))
    return {"state": stats["state"], **{row["name"]: row for row in stats["stats"]}}


def sql(statement: str) -> str:
    """Run SQL with psql in the source's container, as a person would."""
    psql = ("exec", "--no-TTY", "postgres", "psql", "--username", "towpath")
    return compose(*psql, "-tA", "--command", statement, "shop").strip()


def read_json(url: str | urllib.request.Request) -> Any:
    """Return a JSON document from a server."""
    with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - our own
        return json.load(response)


def has_image(image: str) -> bool:
    """Return whether the engine has any version of a vendor's image."""
    return bool(docker("image", "ls", "--quiet", image))


def verify(*arguments: str):
    """Compare all sinks, or the named ones, with the source."""
    return try_compose("run", "--rm", "--no-TTY", "verify", "verify", *arguments)


@pytest.fixture(scope="module", autouse=True)
def platform():
    """Provide an engine with every image, and take everything down at the end."""
    with engine():
        compose("--profile", "*", "down", "--volumes", "--remove-orphans")
        wanted = set(compose("--profile", "*", "config", "--images").split())
        others = {image for image in wanted if not image.startswith("towpath/")}
        for image in (BASE, *sorted(others)):
            log(f"{image}: {stand_ins.ensure(image)}")
        began_s = time.monotonic()
        compose("--profile", "*", "build", within_s=1800)
        log(f"images built in {time.monotonic() - began_s:.0f} s")
        yield
        compose("--profile", "*", "down", "--volumes", "--remove-orphans")


def log(line: str) -> None:
    """Print a line of progress on the terminal."""
    print(f"\n  {line}", end="", flush=True)  # noqa: T201 - for somebody watching


def test_everything_comes_up_healthy_and_filled():
    """`up --wait` returns 0 once all services are healthy and the sinks are filled."""
    began_s = time.monotonic()
    compose("up", "--detach", "--wait", within_s=900)
    log(f"up in {time.monotonic() - began_s:.0f} s")

    for service in (*OWN_PARTS, *THIRD_PARTIES, *SPARK):
        assert "healthy" == inspect(container(service))["State"]["Health"]["Status"]
    for service in ("seed", "init", "fill"):
        assert 0 == inspect(container(service))["State"]["ExitCode"]
    assert "50000" == sql("select count(*) from shop.orders")


@pytest.mark.parametrize("image", ["relay", "sinks", "services", "tools"])
def test_an_image_has_no_privileges_secrets_or_build_tools(image):
    """
    An image has labels, a user of its own, and an entry point other than a shell.

    It has no compiler, and no secret in its environment.
    """
    config = inspect(f"towpath/{image}:{VERSION}")["Config"]
    labels = config["Labels"]
    script = "for p in gcc cc make pip pip3; do command -v $p; done; true"
    command = (
        "--rm",
        "--read-only",
        "--entrypoint",
        "sh",
        f"towpath/{image}:{VERSION}",
    )
    found = docker("run", *command, "-c", script).split()

    assert "10001:10001" == config["User"]
    assert f"towpath/{image}" == labels["org.opencontainers.image.title"]
    assert "Apache-2.0" == labels["org.opencontainers.image.licenses"]
    assert not [x for x in config["Env"] if re.search("PASSWORD|SECRET|TOKEN", x)]
    assert "sh" not in config["Entrypoint"]
    assert [] == found


@pytest.mark.parametrize("image", ["relay", "sinks", "services", "tools"])
def test_an_image_has_the_files_of_the_wheels(image):
    """The hash and size of each file of our packages are those in its wheel."""
    script = "cat /opt/towpath/lib/python3*/site-packages/towpath_*.dist-info/RECORD"
    command = ("--rm", "--entrypoint", "sh", f"towpath/{image}:{VERSION}", "-c", script)
    installed = set(docker("run", *command).split("\n"))
    found = 0
    for wheel in sorted((CLONE / "dist").glob(f"towpath_*-{VERSION}-*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (n for n in archive.namelist() if n.endswith("RECORD"))
            record = archive.read(name).decode().splitlines()
        files = {line for line in record if ",sha256=" in line}
        if f"{name},," in installed:
            found += 1
            assert files <= installed, wheel.name
        else:
            assert not files & installed, wheel.name
    assert found >= 3


@pytest.mark.parametrize("service", OWN_PARTS)
def test_our_containers_can_write_only_to_their_state(service):
    """A container has a read-only root, no capabilities, and a memory limit."""
    host = inspect(container(service))["HostConfig"]
    written = try_compose("exec", "--no-TTY", service, "sh", "-c", "echo > /opt/x")

    assert host["ReadonlyRootfs"]
    assert ["ALL"] == host["CapDrop"]
    assert ["no-new-privileges:true"] == host["SecurityOpt"]
    assert host["Memory"] > 0
    assert written.returncode != 0
    assert "Read-only file system" in written.stderr


def test_load_from_the_page_reaches_every_sink():
    """Two workers join; the page starts checkouts; lag is a row among the requests."""
    compose("--profile", "load", "up", "--detach", "--wait", "--scale", "load-worker=2")
    until(lambda: 2 == len(json.loads(page("stats/requests"))["workers"]), "workers")
    page("swarm", {"user_count": 2, "spawn_rate": 2, "host": SHOP, "load_rate": 8})

    def has_all():
        rows = load_stats()
        names = ("checkout", "cache", "search", "warehouse")
        return all(rows.get(name, {}).get("num_requests", 0) > 3 for name in names)

    until(has_all, "every sink has shown orders from the load", timeout_s=240)


def test_the_console_shows_the_platform_only_with_the_token():
    """The console reads source, relay and sinks over the project's network."""
    with pytest.raises(urllib.error.HTTPError, match="401"):
        read_json(f"{CONSOLE}/api/status")
    (token,) = re.findall("^CONSOLE_TOKEN=(.+)$", ENV.read_text("utf-8"), re.MULTILINE)
    request = urllib.request.Request(  # noqa: S310 - our own
        f"{CONSOLE}/api/status", headers={"Authorization": f"Bearer {token}"}
    )
    status = read_json(request)

    assert status["relay"]["active"]
    assert {"cache", "search", "warehouse"} == {one["sink"] for one in status["sinks"]}


def test_a_sql_row_fills_a_new_sink_while_the_load_continues():
    """`sink add --signal` prints the SQL; psql inserts it; the sink becomes ready."""
    file = "/etc/towpath/search_orders.toml"
    command = (
        "run",
        "--rm",
        "--no-TTY",
        "tools",
        "sink",
        "add",
        file,
        "--signal",
        FILL,
    )
    command = ["docker", *_command(command)]
    with subprocess.Popen(command, cwd=CLONE, stdout=-1, text=True) as adding:
        printed = []
        for line in adding.stdout:
            printed.append(line)
            if line.startswith("insert into towpath.signal"):
                sql(line)
        code = adding.wait(600)

    assert (0, True) == (code, any("is ready" in line for line in printed)), printed
    assert "completed" == sql(STATUS)
    assert "running" == load_stats()["state"]


@pytest.mark.parametrize("service", [*THIRD_PARTIES, *SPARK, *OWN_PARTS])
def test_a_killed_container_recovers_under_load(service):
    """After `docker kill` and `up`, this container and all others are healthy again."""
    docker("kill", container(service))
    began_s = time.monotonic()
    compose("up", "--detach", "--wait", within_s=600)
    log(f"{service}: healthy after {time.monotonic() - began_s:.0f} s")

    for other in (*OWN_PARTS, *THIRD_PARTIES, *SPARK):
        assert "healthy" == inspect(container(other))["State"]["Health"]["Status"]


def test_docker_restarts_a_process_that_dies():
    """The relay is killed from outside Docker; Docker restarts its container."""
    name = container("relay")
    before = inspect(name)["RestartCount"]
    subprocess.run(["kill", "-9", str(inspect(name)["State"]["Pid"])], check=True)

    until(lambda: inspect(name)["RestartCount"] > before, "restarted", timeout_s=60)
    until(
        lambda: inspect(name)["State"]["Health"]["Status"] == "healthy",
        "healthy",
        timeout_s=120,
    )


def test_all_sinks_equal_the_source_after_the_kills():
    """The page stops the load; four sinks equal the source in every key and column."""
    page("stop", {})
    until(lambda: load_stats()["state"] == "stopped", "stopped", timeout_s=120)
    rows = load_stats()
    found = verify()
    log(found.stdout)

    assert rows["checkout"]["num_requests"] > 500
    assert 0 == found.returncode, found.stdout + found.stderr
    for sink in ("cache", "search", "warehouse", "search_orders"):
        assert f"{sink} equals the source" in found.stdout


def test_a_difference_is_reported_with_exit_code_1_and_repaired():
    """One field of one order is changed in the cache, bypassing the sink."""
    script = (
        "import redis; r = redis.Redis(host='redis');"
        " r.hset('towpath:orders:17', 'currency', 'XXX')"
    )
    command = ("run", "--rm", "--no-TTY", "--entrypoint", "python", "tools")
    compose(*command, "-c", script)
    found = verify("cache")
    repaired = verify("cache", "--repair")

    assert (1, True) == (found.returncode, "17" in found.stdout), found.stdout
    assert (0, 0) == (repaired.returncode, verify("cache").returncode), repaired.stdout


def test_stopped_parts_end_gracefully_and_a_second_up_resumes():
    """
    Exit codes equal those outside Docker; orders are kept, and none is seeded again.
    """
    before = sql("select count(*) from shop.orders")
    compose("stop", within_s=300)
    codes = {s: inspect(container(s))["State"]["ExitCode"] for s in OWN_PARTS}
    compose("down")
    compose("up", "--detach", "--wait", within_s=900)
    skipped = compose("logs", "--no-log-prefix", "seed")

    assert dict.fromkeys(OWN_PARTS, 0) == codes
    assert before == sql("select count(*) from shop.orders")
    assert "not seeded" in skipped
    assert 0 == verify().returncode


def test_monitoring_reads_every_part():
    """
    Prometheus reaches each target and evaluates all rules; Grafana, if any, is healthy.
    """
    servers = [name for name, image in MONITORING.items() if has_image(image)]
    compose("--profile", "monitoring", "up", "--detach", "--wait", *servers)

    def health() -> dict[str, str]:
        found = read_json(f"{PROMETHEUS}/targets")["data"]["activeTargets"]
        return {one["labels"]["instance"]: one["health"] for one in found}

    until(lambda: set(health().values()) == {"up"}, "each target is up")
    groups = read_json(f"{PROMETHEUS}/rules")["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]

    targets = {"relay:9464", "serving:9465", "warehouse:9465", "orders:8000"}
    assert targets <= set(health())
    assert {"ok"} == {rule["health"] for rule in rules}


def test_workers_are_scaled_while_the_cluster_runs():
    """A second worker registers with the master."""
    compose("up", "--detach", "--wait", "--scale", "spark-worker=2")

    with urllib.request.urlopen("http://127.0.0.1:8080/json/", timeout=30) as response:
        alive = json.loads(response.read())["aliveworkers"]
    assert 2 == alive


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("relay", "/nowhere.toml"), 2, "No such file"),
        (("serving", "--driver", "nobody", "--config", "/nowhere.toml"), 2, "No such"),
        (("tools", "verify", "nobody"), 2, "no sink is named nobody"),
    ],
)
def test_a_wrong_argument_gives_one_error_with_its_remedy(arguments, code, expected):
    """The exit code is the same as outside Docker."""
    service, *rest = arguments
    found = try_compose("run", "--rm", "--no-TTY", "--no-deps", service, *rest)

    assert code == found.returncode, found.stderr
    assert expected in found.stderr
    assert "remedy:" in found.stderr


def test_down_with_volumes_leaves_nothing():
    """No container, network or volume of the project remains."""
    compose("--profile", "*", "down", "--volumes", "--remove-orphans")
    project_filter = (
        "--filter",
        f"label=com.docker.compose.project={PROJECT}",
        "--quiet",
    )

    assert "" == docker("ps", "--all", *project_filter)
    assert "" == docker("volume", "ls", *project_filter)
    assert "" == docker("network", "ls", *project_filter)
