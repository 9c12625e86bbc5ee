"""Nested values, parsed from Postgres's text form."""

import pytest

from towpath.sinks.verify.types import SourceType, nested_text

TEXT, INTEGER = SourceType("text"), SourceType("integer")
PAIR = SourceType("s.pair", fields=(("a", INTEGER), ("b", TEXT)))


def array_type(element, delimiter=","):
    """Return the array type of an element type."""
    return SourceType("[]", element, delimiter)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (array_type(TEXT), None, None),
        (array_type(TEXT), "{}", "[]"),
        (
            array_type(TEXT),
            r'{a,NULL,"NULL","","\"\\,{}"}',
            r'["a",null,"NULL","","\"\\,{}"]',
        ),
        (array_type(INTEGER), "[-1:0][0:1]={{1,2},{3,NULL}}", "[[1,2],[3,null]]"),
        (
            array_type(TEXT, ";"),
            "{(1,2),(0,0);(3,4),(0,0)}",
            '["(1,2),(0,0)","(3,4),(0,0)"]',
        ),
        (PAIR, "(,)", '{"a":null,"b":null}'),
        (PAIR, '(7,"")', '{"a":7,"b":""}'),
        (PAIR, r'(7,"say ""x"", \\ (y)")', r'{"a":7,"b":"say \"x\", \\ (y)"}'),
        (array_type(PAIR), r'{"(7,\"a b\")",NULL}', '[{"a":7,"b":"a b"},null]'),
    ],
)
def test_a_nested_text_is_written_as_in_the_record(kind, text, expected):
    """
    Quotes, escapes, nulls, bounds and dimensions are handled.
    """
    assert expected == nested_text(kind, text)


@pytest.mark.parametrize(("kind", "text"), [(array_type(TEXT), '{"a'), (PAIR, '(1,"a')])
def test_a_malformed_nested_value_is_refused(kind, text):
    """
    It is not read as a different value.
    """
    with pytest.raises(ValueError, match="not a"):
        nested_text(kind, text)
