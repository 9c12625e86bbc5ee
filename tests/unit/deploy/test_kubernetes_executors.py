"""Executors as pods: manifests, template and settings match each other."""

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import strictyaml

from support import dockerfile
from towpath.settings import load
from towpath.sinks.engine.session import Engine, settings_of
from towpath.sinks.jars import store

_BASE = store.CLONE / "deploy" / "kubernetes"
_FOLDER = store.CLONE / "deploy" / "kubernetes-executors"
_NAMESPACE = "towpath"
_MASTER = "k8s://https://kubernetes.default.svc"

# Each file by its name, and Spark's settings as "spark".
Files = dict[str, Any]


def _read(path: Any) -> Any:
    return strictyaml.load(path.read_text(encoding="utf-8")).data


@pytest.fixture(scope="module")
def files() -> Files:
    """Read all files; every scalar of a manifest is a string."""
    found = {path.stem: _read(path) for path in _FOLDER.glob("*.yaml")}
    found["base"] = _read(_BASE / "kustomization.yaml")
    found["base sinks"] = _read(_BASE / "sinks.yaml")
    return found | {"spark": json.loads((_FOLDER / "spark.json").read_text("utf-8"))}


def _only(container_of: Any) -> Any:
    (container,) = container_of["containers"]
    return container


def _template_findings(files: Files) -> list[str]:
    """
    Name the rules on an executor's privileges and folders that its template breaks.
    """
    pod, container = files["executor"]["spec"], _only(files["executor"]["spec"])
    own = container["securityContext"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    driver = files["base sinks"]["spec"]["template"]["spec"]
    rules = {
        "no token": pod["automountServiceAccountToken"] == "false",
        "an account": pod["serviceAccountName"]
        == files["executor-account"]["metadata"]["name"],
        "the driver's user": pod["securityContext"] == driver["securityContext"],
        "the driver's rights": own == _only(driver)["securityContext"],
        "volumes": {volume["name"] for volume in pod["volumes"]} == set(mounts),
        "a working directory": container["workingDir"] in mounts.values(),
        "a folder for Spark": any(n.startswith("spark-local-dir-") for n in mounts),
        "not the driver's label": files["executor"]["metadata"]["labels"][
            "app.kubernetes.io/name"
        ]
        != "sinks",
    }
    return [f"template: {rule}" for rule, kept in rules.items() if not kept]


def _permission_findings(files: Files) -> list[str]:
    """Name the rules on permissions that the accounts break."""
    driver, executors = files["driver-account"], files["executor-account"]
    role, binding = files["driver-role"], files["driver-role-binding"]
    (rule,) = role["rules"]
    (subject,) = binding["subjects"]
    pod = files["driver"]["spec"]["template"]["spec"]
    rules = {
        "one kind of object": (rule["apiGroups"], rule["resources"])
        == ([""], ["pods"]),
        "no wildcard": "*" not in rule["verbs"],
        "the role": (binding["roleRef"]["kind"], binding["roleRef"]["name"])
        == (role["kind"], role["metadata"]["name"]),
        "the driver alone": subject
        == {"kind": "ServiceAccount", "name": driver["metadata"]["name"]},
        "tokens": {
            account["automountServiceAccountToken"] for account in (driver, executors)
        }
        == {"false"},
        "the driver's account": pod["serviceAccountName"] == subject["name"],
        "the driver's token": pod["automountServiceAccountToken"] == "true",
    }
    return [f"rights: {rule}" for rule, kept in rules.items() if not kept]


def _address_findings(files: Files) -> list[str]:
    """
    Name wrong addresses and ports, with which executors would not find the driver.
    """
    spark, service = files["spark"], files["engine-service"]
    labels = files["base sinks"]["spec"]["template"]["metadata"]["labels"]
    container = _only(files["driver"]["spec"]["template"]["spec"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    exposed = {p["targetPort"]: p["port"] for p in service["spec"]["ports"]}
    rules = {
        "host": spark["spark.driver.host"]
        == f"{service['metadata']['name']}.{_NAMESPACE}.svc",
        "all interfaces": spark["spark.driver.bindAddress"] == "0.0.0.0",  # noqa: S104 - in a pod
        "ports": ports
        == exposed
        == {
            "driver": spark["spark.driver.port"],
            "blocks": spark["spark.driver.blockManager.port"],
        },
        "headless": service["spec"]["clusterIP"] == "None",
        "before it is ready": service["spec"]["publishNotReadyAddresses"] == "true",
        "selector": service["spec"]["selector"].items() <= labels.items(),
    }
    return [f"address: {rule}" for rule, kept in rules.items() if not kept]


def _setting_findings(files: Files) -> list[str]:
    """Name settings that do not match the pods."""
    spark, listed = files["spark"], files["kustomization"]
    (generated,) = listed["configMapGenerator"]
    (image,) = (i for i in files["base"]["images"] if i["name"] == "towpath/sinks")
    container = _only(files["driver"]["spec"]["template"]["spec"])
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    mount = "/etc/towpath"
    resources = {path.name for path in _FOLDER.glob("*.yaml")}
    resources -= {"kustomization.yaml", "driver.yaml", "executor.yaml"}
    rules = {
        "namespace": {spark["spark.kubernetes.namespace"], listed["namespace"]}
        == {_NAMESPACE},
        "the driver's pod": spark["spark.kubernetes.driver.pod.name"]
        == f"{files['base sinks']['metadata']['name']}-0",
        "image": spark["spark.kubernetes.container.image"]
        == f"{image['name']}:{image['newTag']}",
        "template": spark["spark.kubernetes.executor.podTemplateFile"]
        == f"{mount}/executor.yaml",
        "variables": given
        == {
            "TOWPATH_SPARK__MASTER": _MASTER,
            "TOWPATH_SPARK__SETTINGS_FILE": f"{mount}/spark.json",
        },
        "files": generated
        == {
            "name": "towpath-settings",
            "behavior": "merge",
            "files": ["executor.yaml", "spark.json"],
        },
        "resources": set(listed["resources"]) == {"../kubernetes", *resources},
        "patch": listed["patches"] == [{"path": "driver.yaml"}],
        "secrecy": spark["spark.authenticate"] == "true"
        and spark["spark.network.crypto.enabled"] == "true",
    }
    return [f"settings: {rule}" for rule, kept in rules.items() if not kept]


def _findings(files: Files) -> list[str]:
    """Name every rule that the files break."""
    return [
        *_template_findings(files),
        *_permission_findings(files),
        *_address_findings(files),
        *_setting_findings(files),
    ]


def test_the_files_follow_their_rules(files: Files) -> None:
    """
    Privileges are minimal, addresses lead to the driver, and no reference dangles.
    """
    assert _findings(files) == []


@pytest.mark.parametrize(
    ("plant", "finding"),
    [
        (
            lambda f: f["executor"]["spec"]["securityContext"].update(runAsUser="0"),
            "template: the driver's user",
        ),
        (
            lambda f: _only(f["executor"]["spec"])["securityContext"].update(
                readOnlyRootFilesystem="false"
            ),
            "template: the driver's rights",
        ),
        (
            lambda f: _only(f["executor"]["spec"]).update(
                workingDir="/var/lib/towpath"
            ),
            "template: a working directory",
        ),
        (
            lambda f: f["executor"]["metadata"]["labels"].update(
                {"app.kubernetes.io/name": "sinks"}
            ),
            "template: not the driver's label",
        ),
        (
            lambda f: f["driver-role"]["rules"][0]["resources"].append("secrets"),
            "rights: one kind of object",
        ),
        (
            lambda f: f["driver-role-binding"]["subjects"][0].update(name="executors"),
            "rights: the driver alone",
        ),
        (
            lambda f: f["driver"]["spec"]["template"]["spec"].update(
                automountServiceAccountToken="false"
            ),
            "rights: the driver's token",
        ),
        (
            lambda f: f["spark"].update({"spark.driver.port": "7077"}),
            "address: ports",
        ),
        (
            lambda f: f["engine-service"]["spec"].update(
                publishNotReadyAddresses="false"
            ),
            "address: before it is ready",
        ),
        (
            lambda f: f["spark"].update(
                {"spark.kubernetes.container.image": "towpath/sinks:latest"}
            ),
            "settings: image",
        ),
        (
            lambda f: f["kustomization"]["resources"].remove("driver-role.yaml"),
            "settings: resources",
        ),
    ],
)
def test_a_planted_mistake_is_found(
    files: Files, plant: Callable[[Files], object], finding: str
) -> None:
    """
    Each rule reports a file that breaks it.
    """
    planted = copy.deepcopy(files)
    plant(planted)

    assert finding in _findings(planted)


def test_the_driver_reads_the_settings(files: Files) -> None:
    """
    The variables of its pod add Spark's master and settings to the configured sinks.
    """
    container = _only(files["driver"]["spec"]["template"]["spec"])
    environ = {entry["name"]: entry["value"] for entry in container["env"]}
    environ["TOWPATH_SPARK__SETTINGS_FILE"] = str(_FOLDER / "spark.json")

    settings = load(_BASE / "towpath.toml", environ)
    engine = Engine(
        name="towpath-sinks",
        jars=(),
        folder=settings.state_folder,
        memory="512m",
        extra=settings.spark.settings,
        has_tables=False,
        master=settings.spark.master,
    )

    assert [sink.name for sink in settings.sink] == ["cache"]
    assert settings.spark.settings == files["spark"]
    assert settings_of(engine, {}).items() >= files["spark"].items() | {
        ("spark.master", _MASTER)
    }


def test_the_image_has_what_the_entry_point_needs(files: Files) -> None:
    """
    The template's program is on the path; the image sets the paths of Java and Spark.
    """
    stages = dockerfile.ours()
    variables = {
        found
        for stage in dockerfile.chain(stages, "sinks")
        for instruction in stage.of("ENV")
        for found in re.findall(r"(\w+)=", instruction)
    }
    command = _only(files["executor"]["spec"])["command"]

    assert {"PATH", "JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON"} <= variables
    assert command == ["python", "-m", "towpath.sinks.engine.executor_pod"]
