"""Signals built from the arguments of ``towpath snapshot``, and the answers shown."""

import io
import uuid
from pathlib import Path

import pytest
from rich.console import Console

from support.copying import replace
from towpath.deploy.cli.snapshot import key_lines
from towpath.deploy.errors import RelaySilentError
from towpath.deploy.snapshots import signals
from towpath.deploy.snapshots.requests import (
    SnapshotRequest,
    conditions,
    parsed_keys,
    request_snapshot,
)
from towpath.deploy.snapshots.signals import (
    SignalAnswer,
    TableProgress,
    wait_answer,
    watch,
)
from towpath.deploy.snapshots.view import (
    open_bars,
    progress_text,
    snapshot_table,
    time_left_s,
    time_text,
)
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.settings import Kafka, Route, Settings, Sink, Source


class WaitedClock(SystemClock):
    """A clock that advances only in ``wait``."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wait(self, delay_s: float) -> None:
        self.now_s += delay_s


def table(state: str = "running", **fields) -> TableProgress:
    """Make a table of a snapshot that is half done."""
    half = {
        "target": None,
        "rows": 1_500,
        "dropped": 500,
        "estimated_rows": 4_000,
        "percent": 50.0,
        "elapsed_s": 4.0,
        "error": None,
        "rows_per_second": 500.0,
        "last_key": ["7", "a"],
    }
    return TableProgress("s1", "shop.orders", state=state, **half | fields)


def test_a_filter_begins_after_the_first_equals_sign_outside_quotes():
    """
    The collection precedes that sign, and everything after it is the filter.
    """
    assert [
        {"data-collection": "shop.orders", "filter": "amount = 5 or x"},
        {"data-collection": '"shop"."B"', "filter": "y"},
        {"data-collection": '"a=b"."c""=d"', "filter": "x = 1"},
    ] == conditions(
        ["shop.orders=amount = 5 or x", '"shop"."B" = y', '"a=b"."c""=d"=x = 1']
    )


@pytest.mark.parametrize("pair", ["amount > 5", "shop.orders=", "=x", "", 's.a"b'])
def test_a_filter_without_a_table_is_a_mistake(pair):
    """
    An invalid pair is reported before any request.
    """
    with pytest.raises(UsageError) as mistake:
        conditions([pair])

    assert 'write "schema.table=filter"' in str(mistake.value)


@pytest.mark.parametrize(
    ("sinks", "known"),
    [
        ((), "no sink is configured"),
        (("cache", "search"), "the configured sinks are: cache, search"),
    ],
)
def test_the_error_for_an_unknown_sink_lists_the_known_sinks(sinks, known):
    """
    If no sink is configured, the error says so.
    """
    route = Route(topic="t", name="r")
    settings = Settings(
        version=1,
        source=(Source(dsn="x"),),
        kafka=Kafka(bootstrap_servers="localhost:1"),
        sink=tuple(
            Sink(name=name, kind="cache", url="redis://x", route=(route,))
            for name in sinks
        ),
    )

    with pytest.raises(UsageError) as mistake:
        request_snapshot(settings, SnapshotRequest(target="nowhere"))

    assert f"no sink is named 'nowhere'; {known}" == str(mistake.value)


def test_keys_are_read_from_arguments_and_files(tmp_path: Path):
    """
    A key is a string or a JSON list whose numbers keep all their digits.
    """
    file = tmp_path / "keys"
    file.write_text('8\n\n[9007199254740993, "b", 1.10, true]\n  a b \n', "utf-8")

    assert [
        ["7"],
        ["8"],
        ["9007199254740993", "b", "1.10", True],
        ["a b"],
    ] == parsed_keys(key_lines(["7"], file))


@pytest.mark.parametrize("sign", ["\u2028", "\x85", "\x0b", "\x1c", "\r"])
def test_only_a_line_feed_ends_a_key_in_a_file(tmp_path: Path, sign):
    """
    Unicode has other line separators, which a key may contain.
    """
    file = tmp_path / "keys"
    file.write_bytes(f"a{sign}b\r\n8\n".encode())

    assert [[f"a{sign}b"], ["8"]] == parsed_keys(key_lines([], file))


@pytest.mark.parametrize(
    ("args", "text", "reason"),
    [
        (["[7"], None, "is not a JSON list"),
        ([""], None, "a key is empty"),
        (["7", " "], None, "a key is empty"),
        ([""], "8\n", "a key is empty"),
        ([], "\n", "has no keys"),
        ([], b"\xff", "is not UTF-8 text"),
        ([str(n) for n in range(10_001)], None, "one signal takes at most 10,000"),
    ],
)
def test_invalid_keys_are_reported(tmp_path: Path, args, text, reason):
    """
    Each mistake in keys is reported before any request.
    """
    file = None if text is None else tmp_path / "keys"
    if file is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError) as mistake:
        parsed_keys(key_lines(args, file))

    assert reason in str(mistake.value)


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({}, "0:04"),
        ({"eta_s": 3_725.0}, "1:02:05"),
        ({"state": "paused"}, ""),
        ({"rows_per_second": None}, ""),
        ({"estimated_rows": None}, ""),
    ],
)
def test_the_remaining_time_is_shown_if_it_is_known(fields, left):
    """
    The relay's own estimate takes precedence over one from the recent speed.
    """
    assert left == time_text(time_left_s(table(**fields)))


def test_the_progress_of_a_table_is_shown():
    """
    State, rows, speed, time left, last key and error are shown beside the bar.
    """
    assert (
        "running, 1,500 rows, 500 newer in the stream, 500 rows/s, 0:04 left, "
        'up to ["7", "a"]'
    ) == progress_text(table())
    assert progress_text(table("failed", error="it lost its key")).endswith(
        "it lost its key"
    )


def test_a_table_without_progress_is_reported():
    """
    Silence is reported only after a while, and not for a paused table.
    """
    quiet = {"quiet_s": 95.0}
    found = [progress_text(table(**fields)) for fields in (quiet, {"quiet_s": 3.0})]
    text = io.StringIO()
    Console(file=text, width=200).print(snapshot_table([table(**quiet)]))
    silence = "no progress for 1:35: is the relay down, or is it waiting?"

    assert [True, False] == [silence in each for each in found]
    assert silence in text.getvalue()
    assert "no progress" not in progress_text(table("paused", **quiet))


def test_a_list_fits_on_a_screen_of_eighty_columns():
    """
    Each id, name and state fits on one line; empty columns are left out.
    """
    text = io.StringIO()
    signal_id = uuid.uuid4().hex[: signals._ID_CHARACTERS]
    row = replace(
        table("completed", last_key=["300000"], dropped=0), snapshot_id=signal_id
    )
    long = replace(row, snapshot_id=f"towpath-always-{uuid.uuid4().hex}")
    Console(file=text, width=80).print(snapshot_table([row, long]))
    titles, found, *_ = text.getvalue().splitlines()

    assert [signal_id, "shop.orders", "completed"] == found.split()[:3]
    assert {"target", "left", "dropped"}.isdisjoint(titles.split())


def test_lists_and_bars_show_names_verbatim():
    """
    Square brackets in a name or an error are not markup.
    """
    text = io.StringIO()
    console = Console(file=text, width=200)
    odd = table("failed", error="[bold]no[/bold]", kind="blocking")
    console.print(snapshot_table([odd]))
    with open_bars(console) as bars:
        bars.show([odd])
        bars.show([replace(odd, percent=None, collection="shop.[red]")])
    printed = text.getvalue()

    assert [True] * 4 == [
        part in printed
        for part in ("failed (blocking)", "[bold]no[/bold]", "shop.[red]", '["7", "a"]')
    ]


def test_a_relay_that_does_not_answer_is_reported_with_its_remedy(monkeypatch):
    """
    After the timeout, the command reports that the signal is waiting for a relay.
    """
    clock = WaitedClock()
    monkeypatch.setattr(signals, "state", lambda *_: (None, None))
    with pytest.raises(RelaySilentError) as silence:
        wait_answer("dsn", "s1", clock, 3.0)

    assert "towpath relay run" in silence.value.remedy
    assert 3.0 <= clock.now_s <= 3.0 + signals.POLL_EVERY_S


def test_watching_ends_with_the_snapshot(monkeypatch):
    """
    A resumed snapshot has an earlier answer, but its tables show that it continues.
    """
    readings = iter(
        [
            ([table("queued")], ("failed", {"rows": 0})),
            ([table()], ("running", {})),
            ([table("completed")], ("completed", {"rows": 9})),
        ]
    )
    now: list = []
    seen: list[str] = []

    def read(*_) -> list[TableProgress]:
        now[:] = next(readings)
        return now[0]

    monkeypatch.setattr(signals, "progress", read)
    monkeypatch.setattr(signals, "state", lambda *_: now[1])
    answer = watch("dsn", "s1", WaitedClock(), lambda rows: seen.append(rows[0].state))

    assert (
        SignalAnswer("completed", {"rows": 9}),
        ["queued", "running", "completed"],
    ) == (
        answer,
        seen,
    )


def test_an_unknown_snapshot_is_a_mistake(monkeypatch):
    """
    Neither a signal nor a table has the id.
    """
    monkeypatch.setattr(signals, "progress", lambda *_: [])
    monkeypatch.setattr(signals, "state", lambda *_: None)
    with pytest.raises(UsageError) as mistake:
        watch("dsn", "s1", WaitedClock(), lambda _: None)

    assert "there is no snapshot s1" in str(mistake.value)


def test_a_failed_signal_shows_the_reasons_of_its_tables():
    """
    A reason of the signal itself would take precedence.
    """
    tables = {"a.b": {"state": "completed"}, "a.c": {"reason": "no key"}}

    assert "a.c: no key" == SignalAnswer("failed", {"tables": tables}).reason


@pytest.mark.parametrize(
    "key",
    ["[]", "[null]", "[NaN]", "[7, -Infinity]", '[["a"]]', '[7, {"a": 1}]'],
)
def test_a_key_lists_strings_numbers_and_booleans(key):
    """
    No row has another key: no column of a key is null, and the relay refuses the rest.
    """
    with pytest.raises(UsageError) as mistake:
        parsed_keys([key])

    expected = (
        f"the key {key} must list one value or more, each a string, a number or a "
        "boolean"
    )

    assert expected == str(mistake.value)


def test_a_too_deeply_nested_key_is_a_mistake():
    """
    It is not reported as a failure of the command.
    """
    with pytest.raises(UsageError, match="is not a JSON list"):
        parsed_keys(["[" * 100_000])
