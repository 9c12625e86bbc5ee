"""The whole relay with crashes at any moment (see ``support.relay_history``)."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.relay_history import History


@given(
    seed=st.integers(0, 2**32),
    is_transactional=st.booleans(),
    has_former_count=st.booleans(),
)
def test_no_crash_loses_or_repeats_a_row(
    seed: int, *, is_transactional: bool, has_former_count: bool
):
    """
    In any history, each row is published once and in order before it is confirmed.
    """
    history = History(
        Random(seed),  # noqa: S311 - a history, not a secret
        is_transactional=is_transactional,
        has_former_count=has_former_count,
    )

    history.run()


@pytest.mark.parametrize("is_transactional", [False, True])
def test_histories_have_crashes_with_unconfirmed_records(is_transactional: bool):
    """
    At least half of the histories kill a session that has unconfirmed records.
    """
    losses = []
    for seed in range(20):
        history = History(
            Random(seed),  # noqa: S311 - likewise
            is_transactional=is_transactional,
            has_former_count=False,
        )
        history.run()
        losses.append(history.losses)

    assert sum(each > 0 for each in losses) >= 10
