"""The SQL row that a person inserts to fill a sink."""

import json

from towpath.deploy.signals import statement
from towpath.settings import Source

SOURCE = Source(dsn="postgresql://x/y", slot="here")


def test_quotes_are_doubled_and_fields_without_a_value_left_out():
    """Each value is one SQL text, whatever stands in it."""
    text = statement(SOURCE, ["shop.o'clock", "outbox.order"], "it's", "fill'1")
    head, values = text.removesuffix("');").split(" values ('")
    signal_id, kind, data = (t.replace("''", "'") for t in values.split("', '"))

    assert "insert into towpath.signal (id, type, data)" == head
    assert ("fill'1", "execute-snapshot") == (signal_id, kind)
    assert json.loads(data) == {
        "data-collections": ["shop.o'clock", "outbox.order"],
        "target": "it's",
        "relay": "here",
    }
    assert '"max-rows-per-second": 7' in statement(SOURCE, ["a"], "b", "c", 7)
