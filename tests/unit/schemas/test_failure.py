"""The sentences that report a failure."""

import pytest

from towpath.schemas.failure import with_remedy


@pytest.mark.parametrize("message", ["Redis does not answer", "Redis does not answer."])
def test_a_message_and_its_remedy_are_two_sentences(message):
    """
    Messages of targets end with a period; most others do not.
    """
    assert "Redis does not answer. Start it." == with_remedy(message, "Start it.")
