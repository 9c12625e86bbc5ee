"""A sink's routes are changed in the file, while its driver and all else go on."""

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


class Place(SinkPlace):
    """A sink whose block is written again and again."""

    def prepare(self):
        """Let the file have both sinks from the beginning."""
        super().prepare()
        self.before = self.config.read_text()
        self.write(ROUTE)

    def write(self, route):
        """Write the block of the added sink; put there in one step, as editors do."""
        scratch = self.folder / "scratch.toml"
        scratch.write_text(self.before + self.block("extra", route))
        scratch.replace(self.config)

    @property
    def state_folder(self):
        """Where the sinks keep their state."""
        return load(self.config, {}).state_folder

    def outcomes(self):
        """Return what was named of the sink so far: outcome and route."""
        path = sink_folder(self.state_folder, "extra") / "recoveries.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        documents = [orjson.loads(line) for line in lines]
        return [(one["outcome"], one["route"]) for one in documents if "route" in one]

    @property
    def is_running(self):
        """Return whether the sink's query runs."""
        return self.progress("extra").state is State.RUNNING

    def is_filled(self, count):
        """Tell whether so many outcomes were named, and all routes have their rows."""
        lacking = incomplete.routes(self.state_folder, "extra")
        return len(self.outcomes()) == count and self.is_running and not lacking

    def starts(self, name):
        """Count how often a sink was started."""
        return self.said(f'"sink": "{name}", "routes": 1, "event": "sink starting"')

    def said(self, text):
        """Count what the driver has said."""
        return (self.folder / "driver.log").read_text().count(text)


@pytest.fixture
def place(stack, database, unique, tmp_path):
    """Provide a source with its relay, a broker and a cache."""
    stack.up("kafka", "redis")
    found = Place(stack, database, unique, tmp_path)
    yield found
    found.close()


def test_a_changed_route_is_named_and_filled_and_others_never_notice(place, capsys):
    """
    Under load, ids and columns become what the file says now.

    A mistake is reported, and the sink keeps its routes. A new route is filled, and
    a route that is gone is named.
    """
    place.prepare()
    with place.driver():
        until(lambda: place.is_running, "it runs", timeout_s=240)
        with Writers(place.dsn, KEYS + 50, count=2):
            assert 0 == place.towpath("refill", "extra"), capsys.readouterr()
            old = set(place.held("extra"))
            other = ROUTE.replace("order:{order_id}", "o-{order_id}")
            place.write(other.replace('"remark"', '"text"'))
            until(lambda: place.is_filled(1), "the changed route", timeout_s=120)
            assert set() == old & set(place.held("extra"))

            place.write(other.replace('["secret"]', '["secert"]'))
            until(
                lambda: place.said("sink block refused"),
                "the sink is refused",
                timeout_s=30,
            )
            before = place.progress("extra").batches
            until(lambda: place.progress("extra").batches > before, "it goes on")

            whole = SECOND.format(prefix=place.prefix)
            place.write(ROUTE + whole)
            until(lambda: place.is_filled(3), "the new route", timeout_s=120)
        for name in ("extra", "plain"):
            place.catch_up(name)
        expected, plain = place.source(), place.plain()
        assert (expected, plain) == (place.held("extra"), place.held("whole"))

        place.write(ROUTE)
        until(lambda: len(place.outcomes()) == 4, "the route is gone", timeout_s=60)

    assert 1 == place.said("did you mean 'secret'?")
    assert (1, 0) == (place.starts("plain"), place.said("sink failed"))
    assert [
        ("route_changed", "extra"),
        ("route_changed", "extra"),
        ("route_added", "whole"),
        ("route_removed", "whole"),
    ] == place.outcomes()
