"""Partitions of keys: librdkafka's C implementation and its equivalent in Python."""

from hypothesis import example, given
from hypothesis import strategies as st

from towpath.relay.encode.record import murmur2, partition_of
from towpath.relay.kafka.producer import find_partitioner

# From the tests of Java's client, org.apache.kafka.common.utils.UtilsTest (signed).
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_partition_hashes_match_javas_client():
    """
    A key has the same partition as with every other client of the topic.
    """
    assert {key: murmur2(key) for key in JAVA} == {
        key: hashed % (1 << 32) for key, hashed in JAVA.items()
    }


@given(st.binary(max_size=300), st.integers(1, 10_000))
@example(b"", 6)
@example(b"\xff" * 4096, 6)
def test_the_clients_partitioner_and_ours_agree(key: bytes, count: int):
    """
    Produced records and lookups after a crash use the same partition.
    """
    found = find_partitioner()(None, key, len(key), count, None, None)

    assert found == partition_of(key, count)


def test_the_clients_partitioner_is_used():
    """
    It takes a tenth of the time of the Python one, which is only a fallback.
    """
    assert type(find_partitioner()).__name__ == "_FuncPtr"
