"""The Kubernetes manifests: configuration, references, privileges and probes."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import strictyaml

from support import dockerfile
from towpath.settings import Settings, load
from towpath.sinks.jars import store

_FOLDER = store.CLONE / "deploy" / "kubernetes"
_SETTINGS_FOLDER = "/etc/towpath"
_PAGES = {"relay": {"/health/live", "/health/ready"}, "sinks": {"/metrics"}}

Manifests = dict[str, Any]


@pytest.fixture(scope="module")
def manifests() -> Manifests:
    """Read all manifests by file name; every scalar is a string."""
    return {
        path.stem: strictyaml.load(path.read_text(encoding="utf-8")).data
        for path in _FOLDER.glob("*.yaml")
    }


@pytest.fixture(scope="module")
def settings() -> Settings:
    """Load the configuration of the pods."""
    return load(_FOLDER / "towpath.toml", {})


def _container(manifest: Any) -> Any:
    """Return the only container of a workload."""
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    return container


def _pod_findings(name: str, manifest: Any) -> list[str]:
    """Name the rules on a pod's privileges and folders that a workload breaks."""
    pod, container = manifest["spec"]["template"]["spec"], _container(manifest)
    own = container["securityContext"]
    claims = manifest["spec"].get("volumeClaimTemplates", [])
    volumes = {volume["name"] for volume in pod["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in claims}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    rules = {
        "one pod": manifest["spec"]["replicas"] == "1",
        "no token": pod["automountServiceAccountToken"] == "false",
        "no root": pod["securityContext"]["runAsNonRoot"] == "true",
        "the image's user": pod["securityContext"]["runAsUser"] == "10001",
        "no escalation": own["allowPrivilegeEscalation"] == "false",
        "read-only root": own["readOnlyRootFilesystem"] == "true",
        "no capabilities": own["capabilities"]["drop"] == ["ALL"],
        "volumes": volumes == set(mounts),
        "the settings' folder": mounts.get("settings") == _SETTINGS_FOLDER,
        "a memory limit": "memory" in container["resources"]["limits"],
    }
    return [f"{name}: {rule}" for rule, kept in rules.items() if not kept]


def _reference_findings(name: str, manifests: Manifests) -> list[str]:
    """Name dangling references of a workload, its service and its probes."""
    spec, service = manifests[name]["spec"], manifests[f"{name}-service"]["spec"]
    container, labels = _container(manifests[name]), spec["template"]["metadata"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    probes = [container[key]["httpGet"] for key in container if key.endswith("Probe")]
    listed = manifests["kustomization"]
    exposed = re.search(
        rf"AS {name}\n(?:.*\n)*?EXPOSE (\d+)", dockerfile.OURS.read_text()
    )
    assert exposed is not None
    rules = {
        "labels": spec["selector"]["matchLabels"].items() <= labels["labels"].items(),
        "service": service["selector"].items() <= labels["labels"].items(),
        "target port": service["ports"][0]["targetPort"] in ports,
        "service port": service["ports"][0]["port"] == ports["admin"],
        "the image's port": ports["admin"] == exposed.group(1),
        "probed port": all(probe["port"] in ports for probe in probes),
        "probed pages": {probe["path"] for probe in probes} == _PAGES[name],
        "listed": {f"{name}.yaml", f"{name}-service.yaml"} <= set(listed["resources"]),
        "image": container["image"] in {image["name"] for image in listed["images"]},
    }
    return [f"{name}: {rule}" for rule, kept in rules.items() if not kept]


def _findings(manifests: Manifests) -> list[str]:
    """Name every rule that the manifests break."""
    version = (store.CLONE / "VERSION").read_text(encoding="utf-8").strip()
    tags = {image["newTag"] for image in manifests["kustomization"]["images"]}
    found = [] if tags == {version} else ["the version"]
    if manifests["relay"]["spec"].get("strategy") != {"type": "Recreate"}:
        found.append("relay: two pods during a roll-out")
    if manifests["sinks"]["kind"] != "StatefulSet":
        found.append("sinks: no stable volume")
    for name in _PAGES:
        found += _pod_findings(name, manifests[name])
        found += _reference_findings(name, manifests)
    return found


def test_the_manifests_follow_their_rules(manifests: Manifests) -> None:
    """
    Each workload has one pod, minimal privileges, and no dangling reference.
    """
    assert len(manifests) == 1 + 2 * len(_PAGES)

    assert _findings(manifests) == []


@pytest.mark.parametrize(
    ("plant", "finding"),
    [
        (lambda m: m["relay"]["spec"].update(replicas="2"), "relay: one pod"),
        (lambda m: m["relay"]["spec"].pop("strategy"), "relay: two pods"),
        (lambda m: m["sinks"].update(kind="Deployment"), "sinks: no stable volume"),
        (lambda m: m["sinks"]["spec"].pop("volumeClaimTemplates"), "sinks: volumes"),
        (
            lambda m: _container(m["relay"])["readinessProbe"]["httpGet"].update(
                path="/ready"
            ),
            "relay: probed pages",
        ),
        (
            lambda m: _container(m["sinks"])["ports"][0].update(containerPort="9464"),
            "sinks: service port",
        ),
        (
            lambda m: (
                m["sinks-service"]["spec"]["selector"].clear()
                or m["sinks-service"]["spec"]["selector"].update(app="sinks")
            ),
            "sinks: service",
        ),
        (
            lambda m: _container(m["relay"])["securityContext"].update(
                readOnlyRootFilesystem="false"
            ),
            "relay: read-only root",
        ),
        (
            lambda m: m["kustomization"]["resources"].remove("sinks.yaml"),
            "sinks: listed",
        ),
        (
            lambda m: m["kustomization"]["images"][0].update(newTag="latest"),
            "the version",
        ),
    ],
)
def test_a_planted_mistake_is_found(
    manifests: Manifests, plant: Callable[[Manifests], object], finding: str
) -> None:
    """
    Each rule reports a manifest that breaks it.
    """
    planted = copy.deepcopy(manifests)
    plant(planted)

    assert any(found.startswith(finding) for found in _findings(planted))


def test_the_configuration_suits_the_pods(
    manifests: Manifests, settings: Settings
) -> None:
    """
    The state folder is the mounted volume, and the driver listens on the probed port.
    """
    container = _container(manifests["sinks"])
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    driver = container["args"][container["args"].index("--driver") + 1]

    assert str(settings.state_folder) == mounts["state"]
    assert {sink.driver for sink in settings.sink} == {driver}
    assert settings.sinks.metrics_ports == {
        driver: int(container["ports"][0]["containerPort"])
    }
    assert manifests["kustomization"]["configMapGenerator"] == [
        {"name": "towpath-settings", "files": ["towpath.toml"]}
    ]


def test_no_manifest_has_a_login(manifests: Manifests) -> None:
    """
    Logins come from one Secret, which the clone does not contain.
    """
    for name in _PAGES:
        assert _container(manifests[name])["envFrom"] == [
            {"secretRef": {"name": "towpath-logins"}}
        ]
    assert not re.search(
        "password|secret",
        (_FOLDER / "towpath.toml").read_text().split("\n", 1)[1],
        re.IGNORECASE,
    )
