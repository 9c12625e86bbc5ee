"""The derivation of a topic from a row's value."""

import pytest

from towpath.relay.encode.outbox_columns import TopicRule
from towpath.settings.outbox import Outbox, rewriting


@pytest.mark.parametrize(
    ("regex", "replacement", "value", "topic"),
    [
        ("(.*)Order", "$1s", "EuOrder", "Eus"),
        ("(.*)Order", "$1s", "Customer", "Customer"),
        (
            "(?<routedByValue>.*)",
            "outbox.event.${routedByValue}",
            "a",
            "outbox.event.a",
        ),
        ("(?<a>x)|(?<b>y)", "${a}-${b}", "y", "-y"),
        ("(a)(b)", "$2$1$0", "ab", "baab"),
        ("(a)", "$12", "a", "a2"),
        ("(a)b", r"\$1$1", "ab", "$1a"),
        ("a|ab", "x", "ab", "xb"),
        ("a.c", "y", "xabcx", "xabcx"),
    ],
)
def test_topic_values_are_rewritten_as_javas_matcher_does(
    regex: str, replacement: str, value: str, topic: str
):
    """
    The whole value must match; then the first match is replaced (A48).
    """
    outbox = Outbox(
        topic="{aggregate_type}", route_regex=regex, route_replacement=replacement
    )

    rewrite = rewriting(outbox.route_regex, outbox.route_replacement)

    assert topic == rewrite(value)


def test_the_topic_template_applies_after_the_rewrite():
    """
    The pattern is applied first, then the template.
    """
    outbox = Outbox(
        topic="events.{aggregate_type}.v1",
        route_regex="(.*)Order",
        route_replacement="$1",
    )

    assert "events.eu.v1" == TopicRule(outbox, frozenset()).topic("euOrder")
