"""A driver reports a full disk, retries, and resumes once there is space again."""

import resource
import urllib.request

import psutil
import pytest

from support.driver_process import PATIENCE_S, Feed, Place, driver, metrics_port
from support.waiting import until
from towpath.cli import app
from towpath.sinks.state.progress import State

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.timeout(600)]

SINKS = ("one", "two")


class Shop(Place):
    """Two sinks of one driver, and their reported state and metrics."""

    def prepare(self):
        """Configure both sinks with a small budget, and produce their first rows."""
        url = self.stack.redis_url
        self.write_config(
            *(self.sink(name, "cache", url, budget_s=1.0) for name in SINKS)
        )
        self.feed = Feed(self)
        self.feed.work(60, keys=20, seed=1)

    def list_sinks(self, capsys):
        """List the sinks; return the exit code and the output."""
        capsys.readouterr()
        code = app.run(["sink", "list", "--config", str(self.config)])
        return code, capsys.readouterr().out

    def metric(self, name, sink):
        """Read one metric of a sink from the driver's port."""
        port = metrics_port(self.folder / "driver.log")
        address = f"http://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(address, timeout=10) as response:
            lines = response.read().decode().splitlines()
        begin = f'towpath_sink_{name}{{sink="{sink}"}} '
        return next((float(x[len(begin) :]) for x in lines if x.startswith(begin)), 0.0)

    def has_failed(self, sink):
        """Return whether a sink is shown as failed for lack of space."""
        progress = self.progress(sink)
        is_full = "disk full" in (progress.error or "")
        return progress.state is State.FAILED and is_full

    def is_healthy(self):
        """Return whether both sinks are shown as running, with everything applied."""
        for sink in SINKS:
            self.wait_applied(sink)
        return all(self.progress(sink).state is State.RUNNING for sink in SINKS)


@pytest.fixture
def shop(stack, unique, tmp_path):
    """Provide two sinks with their first records."""
    stack.up("kafka", "redis")
    made = Shop(stack, unique, tmp_path)
    made.prepare()
    return made


def limit(processes, size):
    """Make writes by processes fail beyond a file size, whichever users run them."""
    for one in processes:
        _, hard = resource.prlimit(one.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(one.pid, resource.RLIMIT_FSIZE, (size, hard))


def test_a_full_disk_fails_a_sink_until_there_is_space_again(shop, capsys):
    """
    At first only Python, and later Spark as well, is unable to write to files (B1).

    Every sink is shown as failed with ``disk full``, and lag alarms are still raised.
    Once there is space, each sink resumes on its own and ends up equal to the source.
    """
    with driver(shop) as process:
        until(shop.is_healthy, "the sinks have the first rows", timeout_s=PATIENCE_S)
        python = psutil.Process(process.pid)
        for seed, limited in enumerate(
            ([python], [python, *python.children(recursive=True)]), start=2
        ):
            limit(limited, 0)
            shop.feed.work(60, keys=20, seed=seed)
            for sink in SINKS:
                until(
                    lambda sink=sink: shop.has_failed(sink),
                    f"{sink} fails for lack of space",
                    timeout_s=PATIENCE_S,
                )
            code, text = shop.list_sinks(capsys)
            assert (1, 2) == (code, text.count("disk full:")), text
            if len(limited) > 1:
                for sink in SINKS:
                    until(
                        lambda sink=sink: shop.metric("lag_alarm", sink) == 1,
                        "the lag alarm is raised",
                        timeout_s=PATIENCE_S,
                    )

            limit(limited, resource.RLIM_INFINITY)
            until(shop.is_healthy, "the sinks resume", timeout_s=PATIENCE_S)
            _, text = shop.list_sinks(capsys)
            _, _, _, *found = text.splitlines()
            assert (2, 0) == (text.count("running"), text.count("disk full")), text
            assert all(line.startswith("the relay: ") for line in found), text

    for sink in SINKS:
        assert shop.feed.rows == shop.cached(sink)
