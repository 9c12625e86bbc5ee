"""Consistency of the outbox's options."""

from pathlib import Path

import pytest

from towpath.schemas.failure import ConfigurationError
from towpath.settings import load

FILE = """
version = 1
[[source]]
dsn = "postgresql:///x"
[kafka]
bootstrap_servers = "localhost:9092"
[registry]
url = "http://localhost:1"
[relay.outbox]
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('placements = ["a:partition", "b:partition"]', "partition is given more"),
        ('placements = ["a:header:x", "b:header:x"]', "header x is given more"),
        ('placements = ["a:envelope:payload"]', "an envelope already has"),
        ('placements = ["a:header:position"]', "header position is the relay's own"),
        ('placements = ["a:header:id"]', "header id is the relay's own"),
        ('cloudevents = "/x"\ncolumns = { type = "" }', "needs relay.outbox.columns"),
    ],
)
def test_outbox_options_that_contradict_are_mistakes(
    tmp_path: Path, options: str, message: str
):
    """
    Each names its wrong key, before anything starts (A50).
    """
    path = tmp_path / "towpath.toml"
    path.write_text(FILE + options, encoding="utf-8")

    with pytest.raises(ConfigurationError, match=message):
        load(path, {})


def test_a_header_from_the_column_that_it_has_anyway_is_no_mistake(tmp_path: Path):
    """
    ``type:header`` is what every event has.
    """
    path = tmp_path / "towpath.toml"
    path.write_text(FILE + 'placements = ["type:header"]', encoding="utf-8")

    assert ("type:header",) == load(path, {}).relay.outbox.placements
