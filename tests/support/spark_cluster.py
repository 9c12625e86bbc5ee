"""A standalone Spark cluster on this machine: a master and two workers."""

import os
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark

from support.driver_process import PATIENCE_S
from support.waiting import until
from towpath.deploy.bench import cluster
from towpath.deploy.local.part import StateFolder
from towpath.sinks import submit
from towpath.sinks.jars import store

SPARK_HOME = Path(pyspark.__file__).parent
SUBMITTED = Path(submit.__file__).with_name("__main__.py")
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_DEPLOY = "org.apache.spark.deploy"
_EXECUTOR = "CoarseGrainedExecutorBackend"
_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"


class SparkCluster:
    """A master and its workers, each a process group that can be killed as a whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,  # noqa: TID251 - separate processes
            **cluster.environment(StateFolder(folder)),
        }
        self.master_process = self._start(
            "master", f"{_DEPLOY}.master.Master", "--port", "0"
        )
        until(
            lambda: _MASTER.search(self.log("master")) is not None, "the master is up"
        )
        self.master = _MASTER.search(self.log("master"))[1]
        self.workers = [self._work(name) for name in ("one", "two")]
        text = "Successfully registered with master"
        for name in ("one", "two"):
            until(
                lambda name=name: text in self.log(name), f"worker {name} is registered"
            )

    def submit(
        self,
        config: Path,
        driver: str,
        program: tuple[Path | str, ...] = (SUBMITTED,),
        **further: str,
    ) -> subprocess.Popen[bytes]:
        """
        Run a driver of sinks with spark-submit; its log is named ``driver``.

        Args:
            config: The configuration.
            driver: The driver's name.
            program: The file of the program, and its first arguments.
            further: More settings of the engine, without the prefix ``spark.``;
                underscores become dots.
        """
        jars = ",".join(str(jar) for jar in sorted(store.of("spark").glob("*.jar")))
        options = {
            "spark.executor.memory": "700m",
            "spark.executor.extraJavaOptions": _QUICK,
            **{f"spark.{n.replace('_', '.')}": text for n, text in further.items()},
        }
        confs = [f"--conf={name}={value}" for name, value in options.items()]
        command = [
            *(SPARK_HOME / "bin/spark-submit", "--master", self.master),
            *("--jars", jars, "--driver-memory", "1g", *confs),
            *("--driver-java-options", f"-Xss4m {_QUICK}"),
            *(*program, "--config", config, "--driver", driver),
        ]
        return self._open("driver", command)

    def log(self, name: str) -> str:
        """Return the output of a process."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")

    def wait_for(self, holds: Callable[[], bool], submitted) -> None:
        """Wait for a condition; fail if the driver ends first."""
        text = "the condition holds"
        until(
            lambda: submitted.poll() is not None or holds(), text, timeout_s=PATIENCE_S
        )
        assert submitted.poll() is None, self.log("driver")[-3000:]

    def executors(self, worker: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """List the executors of a worker."""
        found = []
        for process in psutil.Process(worker.pid).children(recursive=True):
            # Another child may end in the meantime.
            with suppress(psutil.Error):
                if _EXECUTOR in " ".join(process.cmdline()):
                    found.append(process)
        return found

    @staticmethod
    def python_of(submitted) -> psutil.Process:
        """
        Find the driver's own process among those of spark-submit.

        It is the oldest: the engine starts short-lived processes later. Zombies left by
        the shell that started it are skipped.
        """
        children = psutil.Process(submitted.pid).children()
        living = [c for c in children if c.status() != psutil.STATUS_ZOMBIE]
        return min(living, key=psutil.Process.create_time)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process and its children, as if its machine had failed."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    def close(self) -> None:
        """Kill all running processes."""
        for process in reversed(self._running):
            self.kill(process)

    def _work(self, name: str) -> subprocess.Popen[bytes]:
        options = ("-c", "1", "-m", "1g", "-d", str(self.folder / name))
        return self._start(name, f"{_DEPLOY}.worker.Worker", *options, self.master)

    def _start(self, name: str, main: str, *arguments: str):
        here = ("--host", "127.0.0.1", "--webui-port", "0")
        command = [SPARK_HOME / "bin/spark-class", main, *here, *arguments]
        return self._open(name, command)

    def _open(self, name: str, command) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as file:
            process = subprocess.Popen(
                command,
                env=self.environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._running.append(process)
        return process
