"""The options of the outbox must be consistent."""

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
def test_outbox_options_that_contradict_each_other_are_mistakes(
    tmp_path: Path, options: str, message: str
):
    """
    Each message names the wrong key before anything starts (A50).
    """
    path = tmp_path / "towpath.toml"
    path.write_text(FILE + options, encoding="utf-8")

    with pytest.raises(ConfigurationError, match=message):
        load(path, {})


def test_a_header_from_its_own_column_is_not_a_mistake(tmp_path: Path):
    """
    Every event has ``type:header`` anyway.
    """
    path = tmp_path / "towpath.toml"
    path.write_text(FILE + 'placements = ["type:header"]', encoding="utf-8")

    assert ("type:header",) == load(path, {}).relay.outbox.placements
