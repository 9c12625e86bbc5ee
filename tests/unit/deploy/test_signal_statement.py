"""The INSERT statement that a person runs to fill a sink."""

import json

from towpath.deploy.snapshots.signals import statement
from towpath.settings import Source

SOURCE = Source(dsn="postgresql://x/y", slot="here")


def test_quotes_are_doubled_and_fields_without_a_value_are_left_out():
    """Each value is one SQL string, whatever it contains."""
    data = {"data-collections": ["shop.o'clock"], "target": "it's", "relay": "here"}
    values = ("fill'1", "execute-snapshot", json.dumps(data))
    quoted = ", ".join(f"'{value.replace(chr(39), chr(39) * 2)}'" for value in values)

    text = statement(SOURCE, ["shop.o'clock"], "it's", "fill'1")
    head, _, tail = text.partition(" values ")

    assert "insert into towpath.signal (id, type, data)" == head
    assert f"({quoted});" == tail
    assert '"max-rows-per-second": 7' in statement(SOURCE, ["a"], "b", "c", 7)
