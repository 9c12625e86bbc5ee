"""
The C module of the hot path, and the Python module that is its reference, agree.

The C module is compiled the way setup compiles it. A machine where that is impossible
has no C module; ``test_compiled_relay`` tests that setup reports this.
"""

import gc
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.c_module import (
    CLONE,
    HEADERS,
    OUTBOX,
    PYTHON,
    TEXTS,
    TIMES,
    TOPICS,
    TYPES,
    EventCase,
    EventRoute,
    batch_outcome,
    begun,
    compare,
    compile_into,
    compiler,
    load,
    outcome,
    wrapped,
)
from support.compiled_relay import HOME, compile_relay
from support.relay_bench import inserted
from towpath.relay.commands import compiled
from towpath.relay.encode.record import ANY_PARTITION, Record, partition_of
from towpath.relay.kafka.producer import find_partitioner
from towpath.relay.publish.in_flight import DeliveryLedger

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SANITIZERS = (
    "-g",
    "-O1",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)
LIBRARIES = ("libasan.so", "libubsan.so")
CASE = EventCase(
    wrapped(
        inserted(
            OUTBOX.oid,
            (TIMES[1], b"7", TYPES[0], b"a", b"42", b"Placed", b"{}", HEADERS[2], None),
        )
    ),
    begun(160, 1_700_000_000_123_456),
    3,
)


@pytest.fixture(scope="module")
def in_c() -> ModuleType:
    """Provide the C module that setup compiles, or, without a compiler, Python's."""
    printed = compile_relay()
    folder = compiled.folder(HOME)
    if not folder.is_dir():
        assert printed.startswith("the relay runs as Python"), printed
        return PYTHON
    return load(folder)


def test_both_forms_agree_on_random_frames_and_batches(in_c):
    """
    Valid and damaged frames give the same events, transactions, ends and batches.
    """
    assert compare([PYTHON, in_c], seed=1, count=5000) > 1000


@given(
    values=st.tuples(
        *(st.sampled_from(TIMES) | st.binary(max_size=30), st.sampled_from(TEXTS)),
        *(st.sampled_from(TYPES), st.sampled_from(TEXTS), st.sampled_from(TEXTS)),
        *(st.sampled_from(TEXTS), st.sampled_from(TEXTS), st.sampled_from(HEADERS)),
        st.sampled_from(TEXTS),
    ),
    ordinal=st.integers(0, 2**40),
    parks=st.booleans(),
)
def test_both_forms_write_the_same_events(in_c, values, ordinal, parks):
    """
    Any row gives the same event or error, whether its values are cached or not.
    """
    route = EventRoute([in_c, PYTHON, in_c], parks=parks)
    case = CASE._replace(frame=wrapped(inserted(OUTBOX.oid, values)), ordinal=ordinal)
    first, second, third = route.outcomes(case)

    assert second == first
    assert second == third


def test_the_c_module_writes_usual_events_itself(in_c):
    """
    Once type and headers are cached, the route's function is no longer called.
    """
    if in_c is PYTHON:
        return
    route = EventRoute([in_c])
    (first,) = route.outcomes(CASE)

    def write(*_row: object) -> Record:
        raise AssertionError

    events = in_c.PlainEvents(len(OUTBOX.columns), write, route.layout)
    assert events.record(*CASE) == first.made
    assert isinstance(first.made, Record)


def test_the_c_module_refuses_wrong_arguments(in_c):
    """
    Wrong numbers and types of arguments raise errors, as they do in Python.
    """
    ledger = DeliveryLedger(0)
    record = Record("t", b"k", b"v", [], b"1.0", 0, 512, ANY_PARTITION)
    queued = [(record, ledger.begin_untracked(), b"1.0")]
    calls = [
        (in_c.parse_begin, ()),
        (in_c.parse_begin, (CASE.frame,)),
        (in_c.parse_begin, (None, 0)),
        (in_c.parse_begin, (bytes(46), "0")),
        (in_c.parse_commit, (CASE.frame,)),
        (in_c.parse_commit, (None, CASE.transaction)),
        (in_c.PlainEvents, (9,)),
        (in_c.batched, ()),
        (in_c.batched, (None, ledger, {}, None)),
        (in_c.batched, ([None], ledger, {"t": 1}, None)),
        (in_c.batched, (queued, ledger, {}, None)),
        (in_c.batched, (queued, ledger, {"t": "1"}, None)),
        (in_c.partitions_of, ()),
        (in_c.partitions_of, ((b"k",), "6", None)),
        (in_c.partitions_of, ([b"k"], "6", None)),
        (in_c.partitions_of, ([b"k", None], 6, None)),
    ]
    for call, given_arguments in calls:
        with pytest.raises((TypeError, KeyError)):
            call(*given_arguments)


def test_the_c_module_leaks_no_objects(in_c):
    """
    After thousands of events and batches there are no more objects than before.
    """
    route, ledger = EventRoute([in_c]), DeliveryLedger(0)
    cases = [CASE, CASE._replace(frame=CASE.frame[:-3]), CASE._replace(ordinal=10**11)]
    begin = wrapped(b"B" + bytes(20))
    commit = wrapped(b"C" + bytes(25))

    def repeat(count: int) -> int:
        for _ in range(count):
            made = [route.outcomes(case)[0].made for case in cases]
            opened = in_c.parse_begin(begin, 7)
            assert in_c.parse_commit(commit, opened) == 0
            assert outcome(in_c.batched, [None], ledger, TOPICS, None)[0] is TypeError
            queued = [
                (record, ledger.begin_untracked(), record.position)
                for record in made
                if isinstance(record, Record)
            ]
            batch_outcome(in_c, queued, ledger)
            placed = in_c.partitions_of([b"1"], 6, find_partitioner())
            assert [partition_of(b"1", 6)] == placed
            assert outcome(in_c.partitions_of, [b"1", None], 6, None)[0] is TypeError
        gc.collect()
        return sys.getallocatedblocks()

    repeat(100)
    before = repeat(10)

    assert repeat(5000) < before + 500


def sanitized(folder: Path, seed: int) -> subprocess.CompletedProcess[str]:
    """Compare both forms in a process whose C module is built with sanitizers."""
    queries = [[*compiler(), f"-print-file-name={name}"] for name in LIBRARIES]
    libraries = [subprocess.check_output(each, text=True).strip() for each in queries]
    inherited = os.environ  # noqa: TID251 - a root
    variables = {
        "LD_PRELOAD": ":".join(libraries),
        # The interpreter does not free everything when it ends.
        "ASAN_OPTIONS": "detect_leaks=0",
        # Each object has its own allocation, so that reads beyond it are detected.
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(CLONE / "tests"),
        compiled.VARIABLE: "off",
    }
    return subprocess.run(
        [sys.executable, "-m", "support.c_module", str(folder), str(seed), "3000"],
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_sanitizers_find_nothing(tmp_path, in_c):
    """
    No read or write beyond an object, and no undefined behavior, on random frames.
    """
    if in_c is PYTHON:
        return
    compile_into(tmp_path, *SANITIZERS)
    done = sanitized(tmp_path, seed=2)

    assert ("", 0) == (done.stderr, done.returncode)
    assert int(done.stdout) > 500
