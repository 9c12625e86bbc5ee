"""
Column values as text, for targets that know only text.

Records carry integers and floats as numbers, booleans as booleans, everything else as
text already. Null has no text: whoever writes a value decides what null becomes.
"""

import orjson

from towpath.sinks.change import Value


def text_of(value: Value) -> str:
    """Write one value; null is written ``null``, so that a key's part has a text."""
    if type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    # Integers beyond 64 bits do not come: such columns are numeric, hence text.
    return orjson.dumps(value).decode()
