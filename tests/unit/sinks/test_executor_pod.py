"""The entry point of executor pods: its command line."""

import subprocess
import sys

import pytest

from towpath.sinks.engine.executor_pod import command_of

_POD = {
    "JAVA_HOME": "/java",
    "SPARK_HOME": "/spark",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "700m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_EXECUTOR_POD_NAME": "towpath-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}


def test_the_command_follows_from_the_variables() -> None:
    """
    Java options are ordered by their numbers, and keep their spaces.
    """
    options = {f"SPARK_JAVA_OPT_{n}": f"-Dn={n} x" for n in (10, 2, 0)}

    command = command_of({**_POD, **options, "SPARK_CLASSPATH": "/further/*"})

    assert command == [
        *("/java/bin/java", "-Dn=0 x", "-Dn=2 x", "-Dn=10 x", "-Xmx700m"),
        *("-cp", "/further/*:/spark/jars/*"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "spark://CoarseGrainedScheduler@driver:7078"),
        *("--executor-id", "3", "--cores", "2", "--app-id", "spark-1"),
        *("--hostname", "10.0.0.7", "--resourceProfileId", "0"),
        *("--podName", "towpath-exec-3"),
    ]


def test_the_class_path_has_only_the_engines_classes_by_default() -> None:
    """
    The class path has no empty entry, which would mean the current folder.
    """
    command = command_of(_POD)

    assert command[command.index("-cp") + 1] == "/spark/jars/*"


@pytest.mark.parametrize(
    ("argument", "missing", "error"),
    [
        ("executor", None, "error: JAVA_HOME: /java/bin/java cannot be run: No such "),
        ("driver", None, "invalid choice: 'driver'"),
        ("executor", "JAVA_HOME", "error: JAVA_HOME is not set: Spark's driver starts"),
        ("executor", "SPARK_DRIVER_URL", "error: SPARK_DRIVER_URL is not set: Spark's"),
    ],
)
@pytest.mark.timeout(30)
def test_a_manual_start_ends_with_one_clear_error(
    argument: str, missing: str | None, error: str
) -> None:
    """
    It starts neither a driver, nor an executor that no driver has described.
    """
    done = subprocess.run(
        [sys.executable, "-m", "towpath.sinks.engine.executor_pod", argument],
        env={name: text for name, text in _POD.items() if name != missing},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert error in done.stderr
    assert "Traceback" not in done.stderr
