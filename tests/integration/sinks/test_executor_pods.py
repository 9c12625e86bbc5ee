"""Executors as pods, with Spark's Kubernetes backend and the image's entry point."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import strictyaml

from support.driver_process import PATIENCE_S, Feed, Place, start
from support.pod_server import PodServer, serving
from support.spark_cluster import SPARK_HOME
from support.waiting import until
from towpath.sinks.jars import java, store

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

_FOLDER = store.CLONE / "deploy" / "kubernetes-executors"
_DRIVER = "sinks-0"
# The settings for this machine; all others are as documented.
_HERE = {
    "spark.kubernetes.executor.podTemplateFile": str(_FOLDER / "executor.yaml"),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.port": "0",
    "spark.driver.blockManager.port": "0",
    "spark.executor.instances": "1",
}


class Shop(Place):
    """A table's records in Kafka, and a cache that executors write to."""

    def __init__(self, stack, name, folder):
        super().__init__(stack, name, folder)
        options = {"write_from": "executors", "spread_from_records": 50}
        self.write_config(self.sink("cache", "cache", stack.redis_url, **options))
        self.feed = Feed(self)

    def is_spread(self):
        """Return whether the executors have written a batch."""
        return "writes large batches on the executors" in self.log()


@pytest.fixture
def shop(stack, unique, tmp_path):
    """Provide a shop whose target is running."""
    stack.up("kafka", "redis")
    return Shop(stack, unique, tmp_path)


@pytest.fixture
def pods(tmp_path):
    """Provide a namespace with the driver's pod, which has only the driver's role."""
    role = strictyaml.load((_FOLDER / "driver-role.yaml").read_text("utf-8")).data
    (rule,) = role["rules"]
    assert rule["resources"] == ["pods"]
    folder = tmp_path / "pods"
    folder.mkdir()
    image = {
        "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
        "JAVA_HOME": str(java.spark_home(tmp_path / "java")),
        "SPARK_HOME": str(SPARK_HOME),
        "PYSPARK_PYTHON": sys.executable,
    }
    server = PodServer(folder, image, frozenset(rule["verbs"]))
    server.add_running("towpath", _DRIVER)
    return server


def check_pod(pod, settings, owner):
    """Check the pod of an executor that Spark has requested."""
    metadata, spec = pod["metadata"], pod["spec"]
    (container,) = spec["containers"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    security = container["securityContext"]

    assert container["image"] == settings["spark.kubernetes.container.image"]
    assert container["command"][-1] == "towpath.sinks.engine.executor_pod"
    assert container["args"] == ["executor"]
    assert container["resources"] == {
        "requests": {"cpu": "1", "memory": "2048Mi"},
        "limits": {"memory": "2048Mi"},
    }
    assert mounts == {"tmp": container["workingDir"], "spark-local-dir-1": "/var/spark"}
    assert {volume["name"] for volume in spec["volumes"]} == set(mounts)
    assert environment["SPARK_LOCAL_DIRS"] == mounts["spark-local-dir-1"]
    assert environment["_SPARK_AUTH_SECRET"]
    assert (
        spec["securityContext"]["runAsUser"],
        security["readOnlyRootFilesystem"],
    ) == (
        10001,
        True,
    )
    assert (security["allowPrivilegeEscalation"], security["capabilities"]) == (
        False,
        {"drop": ["ALL"]},
    )
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == (
        "executors",
        False,
    )
    assert spec["restartPolicy"] == "Never"
    assert metadata["labels"]["app.kubernetes.io/name"] == "executors"
    assert metadata["labels"]["spark-role"] == "executor"
    assert [(o["name"], o["uid"]) for o in metadata["ownerReferences"]] == [owner]


@pytest.fixture
def settings():
    """Provide the documented settings."""
    return json.loads((_FOLDER / "spark.json").read_text(encoding="utf-8"))


@pytest.fixture
def driver(shop, pods, settings, tmp_path, monkeypatch):
    """Provide a driver whose executors have written the existing records."""
    written = tmp_path / "spark.json"
    written.write_text(json.dumps(settings | _HERE), encoding="utf-8")
    monkeypatch.setenv("TOWPATH_SPARK__SETTINGS_FILE", str(written))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    shop.feed.work(1200, keys=200, seed=1)
    with serving(pods) as url:
        monkeypatch.setenv("TOWPATH_SPARK__MASTER", f"k8s://{url}")
        process = start(shop)
        try:
            until(
                lambda: process.poll() is not None or shop.is_spread(),
                "the executors write",
                timeout_s=PATIENCE_S,
            )
            assert process.poll() is None, shop.log() + pods.log()
            shop.wait_applied("cache")
            yield process
        finally:
            process.kill()
            process.wait(10)


def test_a_driver_starts_executors_as_pods_and_deletes_them(
    shop, pods, driver, settings
):
    """
    The documented settings, template and role suffice; a killed executor is replaced.
    """
    owner = pods.get(_DRIVER)["metadata"]
    (first,) = pods.names()
    pods.kill(first)
    shop.feed.work(1200, keys=200, seed=2)
    shop.wait_applied("cache")
    (second,) = pods.names()
    driver.send_signal(signal.SIGTERM)

    assert driver.wait(60) == 0, shop.log()
    assert pods.names() == []
    assert first != second
    assert shop.cached() == shop.feed.rows
    assert {("pods", verb) for verb in pods.verbs} == {
        (kind, verb) for verb, kind in pods.requested
    }
    for pod in pods.created:
        check_pod(pod, settings, (owner["name"], owner["uid"]))
