"""The entry point of executors' pods: its command line."""

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


def test_the_command_has_what_the_variables_say() -> None:
    """
    Options of Java are in the order of their numbers, and keep their spaces.
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


def test_only_the_engines_own_classes_are_usual() -> None:
    """
    Without further classes the class path has no empty entry, which is a folder.
    """
    command = command_of(_POD)

    assert command[command.index("-cp") + 1] == "/spark/jars/*"


@pytest.mark.parametrize(
    ("word", "lacking", "error"),
    [
        ("executor", None, "error: JAVA_HOME: /java/bin/java cannot be run: No such "),
        ("driver", None, "invalid choice: 'driver'"),
        ("executor", "JAVA_HOME", "error: JAVA_HOME is not set: Spark's driver starts"),
        ("executor", "SPARK_DRIVER_URL", "error: SPARK_DRIVER_URL is not set: Spark's"),
    ],
)
@pytest.mark.timeout(30)
def test_a_start_by_hand_ends_with_one_sentence(
    word: str, lacking: str | None, error: str
) -> None:
    """
    It runs no driver, and no executor that no driver has described.
    """
    done = subprocess.run(
        [sys.executable, "-m", "towpath.sinks.engine.executor_pod", word],
        env={name: text for name, text in _POD.items() if name != lacking},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert error in done.stderr
    assert "Traceback" not in done.stderr
