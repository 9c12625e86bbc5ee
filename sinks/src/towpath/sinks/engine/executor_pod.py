"""
The entry point of an executor's pod in Kubernetes: ``python -m`` this module.

Spark's driver starts the pod with the argument ``executor`` and describes the executor
in environment variables. PySpark's package does not include the entry point of Spark's
own images. This process becomes the executor's Java process, so that Java receives the
signals that stop the pod.
"""

import argparse
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

_BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_ROLE: Final = "executor"

# Spark numbers the options of the executor's Java process.
_JAVA_OPTION: Final = re.compile(r"SPARK_JAVA_OPT_(\d+)")
_MEMORY: Final = "SPARK_EXECUTOR_MEMORY"
_FURTHER_CLASSES: Final = "SPARK_CLASSPATH"

# Each option of the backend, with its environment variable.
_OPTIONS: Final = (
    ("--driver-url", "SPARK_DRIVER_URL"),
    ("--executor-id", "SPARK_EXECUTOR_ID"),
    ("--cores", "SPARK_EXECUTOR_CORES"),
    ("--app-id", "SPARK_APPLICATION_ID"),
    ("--hostname", "SPARK_EXECUTOR_POD_IP"),
    ("--resourceProfileId", "SPARK_RESOURCE_PROFILE_ID"),
    ("--podName", "SPARK_EXECUTOR_POD_NAME"),
)


def command_of(environ: Mapping[str, str]) -> list[str]:
    """
    Return the command of the executor that the variables describe.

    Raises:
        KeyError: A variable is not set; its name is the key.
    """
    java, spark = (Path(environ[name]) for name in ("JAVA_HOME", "SPARK_HOME"))
    numbered = ((_JAVA_OPTION.fullmatch(name), text) for name, text in environ.items())
    options = sorted((int(found[1]), text) for found, text in numbered if found)
    classes = [environ.get(_FURTHER_CLASSES, ""), str(spark / "jars" / "*")]
    return [
        str(java / "bin" / "java"),
        *(text for _, text in options),
        f"-Xmx{environ[_MEMORY]}",
        *("-cp", ":".join(filter(None, classes))),
        _BACKEND,
        *(arg for option, name in _OPTIONS for arg in (option, environ[name])),
    ]


def main() -> NoReturn:
    """Replace this process with the executor's Java process."""
    parser = argparse.ArgumentParser(
        prog="towpath.sinks.engine.executor_pod",
        description="Run an executor in a pod that Spark's driver has started.",
    )
    parser.add_argument("role", choices=[_ROLE])
    parser.parse_args()
    try:
        command = command_of(os.environ)  # noqa: TID251 - the executor's description
    except KeyError as error:
        parser.error(
            f"{error.args[0]} is not set: Spark's driver starts this program,"
            " in a pod of the image towpath/sinks"
        )
    try:
        os.execv(command[0], command)  # noqa: S606 - no shell is needed
    except OSError as error:
        parser.error(f"JAVA_HOME: {command[0]} cannot be run: {error.strerror}")


if __name__ == "__main__":
    main()
