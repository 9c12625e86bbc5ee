"""
The relay's loop over frames, as compiled modules in a process of its own, or as Python.

``outcome`` runs the loop in this process over reads of frames, and returns its results;
``copied`` decodes the COPY lines of a snapshot. ``CompiledRelay`` does the same in a
process that has imported the compiled modules; ``python -m
support.compiled_relay HOME`` is that process. Reads, lines and outcomes travel as lines
of JSON.
"""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from towpath.relay.commands import compiled

CLONE = Path(__file__).parents[2]
# Built once for each state of the source, and kept between runs of the tests.
HOME = CLONE / ".towpath" / "compiled-for-tests"

Reads = Sequence[Sequence[bytes]]
# Settings in ``support.table_rows``: preset, format, and the number of the options.
Chosen = tuple[str, str, int]


def compile_relay(home: Path = HOME, **variables: str) -> str:
    """Run the setup's script for a different folder; return its output."""
    inherited = os.environ  # noqa: TID251 - a root
    home.parent.mkdir(exist_ok=True)
    with home.with_suffix(".lock").open("w", encoding="utf-8") as file:
        # Other workers wait for the modules instead of compiling them again.
        fcntl.flock(file, fcntl.LOCK_EX)
        done = subprocess.run(
            [sys.executable, str(CLONE / "deploy" / "compile_relay.py"), str(home)],
            capture_output=True,
            text=True,
            check=True,
            env={**inherited, compiled.VARIABLE: "on", **variables},
        )
    return done.stdout


def outcome(reads: Reads, chosen: Chosen | None = None) -> list[object]:
    """
    Run the loop of a new relay over reads; return its results.

    The results are the records, the confirmed LSN, the counts, and the type and message
    of the error, if there was one. With chosen settings, the catalog knows the table of
    ``support.table_rows``.
    """
    # The compiled modules must be imported before anything imports the Python ones.
    from support.relay_bench import Bench  # noqa: PLC0415
    from support.table_rows import FACTS, sections  # noqa: PLC0415

    if chosen is None:
        bench = Bench()
    else:
        relay = sections(*chosen)
        bench = Bench(facts=FACTS, preset=relay["preset"], **relay["rows"])
    error = None
    try:
        for frames in reads:
            bench.stream.reads.append(list(frames))
            bench.turn()
        bench.clock.now_s += 1
        bench.turn()
    except Exception as raised:  # noqa: BLE001 - its type is compared
        error = [type(raised).__name__, str(raised)]
    records = [repr(tuple(record)) for record in bench.producer.records]
    stats = bench.stats
    counts = [stats.records, stats.transactions, repr(sorted(stats.skipped.items()))]
    return [records, bench.confirmed, *counts, error]


def copied(lines: Sequence[bytes], chosen: Chosen) -> list[object]:
    """Decode a table's COPY lines; return the rows, and their records or the error."""
    from support.table_rows import READ_SLICE, codec_and_route  # noqa: PLC0415
    from towpath.relay.snapshot.sql import decode_lines  # noqa: PLC0415

    rows = decode_lines(lines)
    try:
        records = codec_and_route(*chosen)[1].reads(rows, READ_SLICE)
    except Exception as raised:  # noqa: BLE001 - its type is compared
        return [repr(rows), type(raised).__name__, str(raised)]
    return [repr(rows), *(repr(tuple(record)) for record in records)]


class CompiledRelay:
    """The process with the compiled modules."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def outcome(self, reads: Reads, chosen: Chosen | None = None) -> list[object]:
        """Return the result of ``outcome`` in the process."""
        return self._request("outcome", reads, chosen)

    def copied(self, lines: Sequence[bytes], chosen: Chosen) -> list[object]:
        """Return the result of ``copied`` in the process."""
        return self._request("copied", [lines], chosen)

    def _request(self, name: str, reads: Reads, chosen: Chosen | None) -> list[object]:
        texts = [[frame.hex() for frame in frames] for frames in reads]
        request = json.dumps([name, texts, chosen])
        print(request, file=self._process.stdin, flush=True)
        answer: list[object] = json.loads(self._process.stdout.readline())
        return answer


@contextmanager
def compiled_relay(home: Path = HOME) -> Iterator[CompiledRelay]:
    """Run the process for the block."""
    arguments = [sys.executable, "-m", "support.compiled_relay", str(home)]
    pipe = subprocess.PIPE
    inherited = os.environ  # noqa: TID251 - a root
    paths = (str(CLONE / "tests"), *filter(None, [inherited.get("PYTHONPATH")]))
    env = {**inherited, "PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(
        arguments, stdin=pipe, stdout=pipe, text=True, env=env
    ) as process:
        try:
            yield CompiledRelay(process)
        finally:
            process.kill()


def main() -> None:
    """Print the outcome of each line of reads, or of COPY lines, as one line."""
    compiled.import_modules({}, Path(sys.argv[1]))
    assert compiled.running() is compiled.Code.COMPILED
    for line in sys.stdin:
        name, texts, chosen = json.loads(line)
        reads = [[bytes.fromhex(text) for text in each] for each in texts]
        found = copied(reads[0], chosen) if name == "copied" else outcome(reads, chosen)
        print(json.dumps(found), flush=True)  # noqa: T201 - its output


if __name__ == "__main__":
    main()
