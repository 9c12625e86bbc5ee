"""Unreadable files beside a checkpoint, left by a later release or a broken disk."""

import pytest

from towpath.sinks.targets.cache.losses import CacheLosses, CacheWatch
from towpath.sinks.targets.webhook.write import HealthProbe

UNREADABLE = [b"", b"[]", b"{}", b"7", b'{"id": "x", "unasked": [], "more": 1}']


@pytest.mark.parametrize("content", UNREADABLE)
def test_unreadable_cache_state_counts_as_none(tmp_path, content):
    """
    The sink starts, and stores new witnesses in the cache.
    """
    file = tmp_path / "cache.json"
    file.write_bytes(content)
    losses = CacheLosses(CacheWatch("s", file, ("r",), None))

    assert not losses.load()
    assert "" == losses.known.id


@pytest.mark.parametrize("content", UNREADABLE)
def test_an_unreadable_probe_counts_as_none(tmp_path, content):
    """
    The next accepted request replaces it.
    """
    file = tmp_path / "webhook.json"
    file.write_bytes(content)
    probe = HealthProbe(file)
    probe.load()

    assert not probe.is_receiver_healthy(None)
