"""Values inside values, taken out of Postgres's texts."""

import pytest

from towpath.sinks.verify.nested import SourceType, nested_text

TEXT, INTEGER = SourceType("text"), SourceType("integer")
PAIR = SourceType("s.pair", fields=(("a", INTEGER), ("b", TEXT)))


def of(element, delimiter=","):
    """Return the type of its arrays."""
    return SourceType("[]", element, delimiter)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (of(TEXT), None, None),
        (of(TEXT), "{}", "[]"),
        (of(TEXT), r'{a,NULL,"NULL","","\"\\,{}"}', r'["a",null,"NULL","","\"\\,{}"]'),
        (of(INTEGER), "[-1:0][0:1]={{1,2},{3,NULL}}", "[[1,2],[3,null]]"),
        (of(TEXT, ";"), "{(1,2),(0,0);(3,4),(0,0)}", '["(1,2),(0,0)","(3,4),(0,0)"]'),
        (PAIR, "(,)", '{"a":null,"b":null}'),
        (PAIR, '(7,"")', '{"a":7,"b":""}'),
        (PAIR, r'(7,"say ""x"", \\ (y)")', r'{"a":7,"b":"say \"x\", \\ (y)"}'),
        (of(PAIR), r'{"(7,\"a b\")",NULL}', '[{"a":7,"b":"a b"},null]'),
    ],
)
def test_a_text_is_written_as_the_record_has_it(kind, text, expected):
    """Quotes, escapes, nulls, bounds and dimensions."""
    assert expected == nested_text(kind, text)


@pytest.mark.parametrize(("kind", "text"), [(of(TEXT), '{"a'), (PAIR, '(1,"a')])
def test_what_is_no_such_value_is_refused(kind, text):
    """Rather than read as another."""
    with pytest.raises(ValueError, match="not a"):
        nested_text(kind, text)
