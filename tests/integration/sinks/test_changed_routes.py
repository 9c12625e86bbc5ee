"""A sink's routes are changed in the file while its driver and all other sinks run."""

import orjson
import pytest

from support.sink_place import KEYS, ROUTE, SinkPlace, Writers
from support.waiting import until
from towpath.settings import load
from towpath.sinks.state import incomplete
from towpath.sinks.state.progress import State, sink_folder

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(500)]

SECOND = """
[[sink.route]]
topic = "{prefix}.shop.lines"
name = "whole"
"""


class Rig(SinkPlace):
    """A sink whose block is rewritten several times."""

    def prepare(self):
        """Put both sinks into the file at the start."""
        super().prepare()
        self.before = self.config.read_text()
        self.write(ROUTE)

    def write(self, route):
        """Write the block of the added sink atomically, as editors do."""
        scratch = self.folder / "scratch.toml"
        scratch.write_text(self.before + self.block("extra", route))
        scratch.replace(self.config)

    @property
    def state_folder(self):
        """The folder in which the sinks keep their state."""
        return load(self.config, {}).state_folder

    def outcomes(self):
        """Return the outcome and the route of each recovery of the sink so far."""
        path = sink_folder(self.state_folder, "extra") / "recoveries.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        documents = [orjson.loads(line) for line in lines]
        return [(one["outcome"], one["route"]) for one in documents if "route" in one]

    @property
    def is_running(self):
        """Return whether the sink's query is running."""
        return self.progress("extra").state is State.RUNNING

    def is_filled(self, count):
        """Return whether the sink runs, has ``count`` outcomes, and lacks no rows."""
        incomplete_routes = incomplete.routes(self.state_folder, "extra")
        return (
            len(self.outcomes()) == count and self.is_running and not incomplete_routes
        )

    def starts(self, name):
        """Count how often a sink was started."""
        return self.logged_count(
            f'"sink": "{name}", "routes": 1, "event": "sink starting"'
        )

    def logged_count(self, text):
        """Count the occurrences of a string in the driver's log."""
        return (self.folder / "driver.log").read_text().count(text)


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide a source with its relay, a broker and a cache."""
    stack.up("kafka", "redis")
    found = Rig(stack, database, unique, tmp_path)
    yield found
    found.close()


def test_a_changed_route_is_reported_and_filled_without_affecting_others(rig, capsys):
    """
    Under load, the sink's rows get the ids and columns that the changed route sets.

    An invalid block is reported, and the sink keeps its routes. A new route is filled,
    and a removed route is reported.
    """
    rig.prepare()
    with rig.driver():
        until(lambda: rig.is_running, "the sink runs", timeout_s=240)
        with Writers(rig.dsn, KEYS + 50, count=2):
            assert 0 == rig.towpath("refill", "extra"), capsys.readouterr()
            old = set(rig.held("extra"))
            other = ROUTE.replace("order:{order_id}", "o-{order_id}")
            rig.write(other.replace('"remark"', '"text"'))
            until(
                lambda: rig.is_filled(1), "the changed route is filled", timeout_s=120
            )
            assert set() == old & set(rig.held("extra"))

            rig.write(other.replace('["secret"]', '["secert"]'))
            until(
                lambda: rig.logged_count("sink block refused"),
                "the block is refused",
                timeout_s=30,
            )
            before = rig.progress("extra").batches
            until(
                lambda: rig.progress("extra").batches > before, "the sink keeps writing"
            )

            whole = SECOND.format(prefix=rig.prefix)
            rig.write(ROUTE + whole)
            until(lambda: rig.is_filled(3), "the new route is filled", timeout_s=120)
        for name in ("extra", "plain"):
            rig.catch_up(name)
        expected, plain = rig.source(), rig.plain()
        assert (expected, plain) == (rig.held("extra"), rig.held("whole"))

        rig.write(ROUTE)
        until(lambda: len(rig.outcomes()) == 4, "the route is removed", timeout_s=60)

    assert 1 == rig.logged_count("did you mean 'secret'?")
    assert (1, 0) == (rig.starts("plain"), rig.logged_count("sink failed"))
    assert [
        ("route_changed", "extra"),
        ("route_changed", "extra"),
        ("route_added", "whole"),
        ("route_removed", "whole"),
    ] == rig.outcomes()
