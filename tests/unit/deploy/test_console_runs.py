"""Long actions of the console: progress, outcomes, and mutual exclusion."""

import threading
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from support.waiting import until
from towpath.deploy.console import long_actions
from towpath.deploy.console.actions import SnapshotInput
from towpath.deploy.console.long_actions import (
    AddSinkInput,
    RefillInput,
    VerificationInput,
    begin_verification,
    missing_folder_reason,
    shown_result,
)
from towpath.deploy.console.messages import (
    HIDDEN,
    hidden_columns,
    hidden_fields,
    shown_value,
)
from towpath.deploy.console.runs import Run, RunEnd, Runs
from towpath.deploy.console.security import AuditLog
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.services.plumbing.http import ConflictError
from towpath.settings import Settings
from towpath.sinks.errors import SearchRefusedError
from towpath.sinks.state.progress import sink_folder
from towpath.sinks.verify.compare import Difference, DifferenceKind
from towpath.sinks.verify.report import RouteReport, Verification


class SteppedClock(SystemClock):
    """A clock that a test advances."""

    at_s = 100.0

    def monotonic_s(self):
        """Return the time."""
        return self.at_s


def settings(folder, *transforms):
    """Make settings with a cache whose one route has these transforms."""
    route = {"topic": "towpath.shop.orders", "name": "orders", "transforms": transforms}
    salts = {"key": "s" * 32}
    sink = {"name": "cache", "kind": "cache", "url": "x", "hash_salts": salts}
    return Settings.model_validate(
        {
            "version": 1,
            "state_folder": str(folder),
            "source": [{"dsn": "x", "tables": ["shop.orders"]}],
            "kafka": {"bootstrap_servers": "x"},
            "registry": {"url": "x"},
            "sink": [sink | {"route": [route]}],
        }
    )


@pytest.fixture
def audit(tmp_path):
    """Provide an audit log."""
    return AuditLog(tmp_path / "audit.jsonl", SystemClock())


@pytest.fixture
def runs(audit):
    """Provide the runs of a console."""
    return Runs(audit, SystemClock())


def ended(runs):
    """Return the newest run once it has ended."""
    until(lambda: runs.newest("verify")["state"] != "running", "the run has ended")
    return runs.newest("verify")


def test_a_step_has_its_rate_and_the_remaining_time():
    """
    Rows read before the first report do not raise the rate; a step may show totals.
    """
    clock = SteppedClock()
    run = Run("verify", {}, clock)
    run.advance("read", 1_000, 2_000)
    [first] = run.document()["steps"]
    clock.at_s += 5
    run.advance("read", 500, 2_000)
    run.show("fill", 7, 0)
    run.show("fill", 9, 0)
    read, fill = run.document()["steps"]

    assert (None, None, 50.0) == (
        *(first["rows_per_second"], first["left_s"]),
        first["percent"],
    )
    assert (100.0, 5.0, 75.0) == (
        *(read["rows_per_second"], read["left_s"]),
        read["percent"],
    )
    assert (9, None, None) == (fill["rows"], fill["estimate"], fill["percent"])


def test_a_second_snapshot_of_a_table_restarts_its_step():
    """
    A rebuild fills routes of the same table with successive snapshots.
    """
    clock = SteppedClock()
    run = Run("sink rebuild", {}, clock)
    for rows in (500, 1_000, 0, 100):
        run.show("shop.orders", rows, 1_000)
        clock.at_s += 5
    [step] = run.document()["steps"]

    assert (100, 20.0, 45.0) == (step["rows"], step["rows_per_second"], step["left_s"])


def test_an_estimate_that_is_known_later_gives_a_percentage():
    """
    A snapshot is queued first, without an estimate of its rows.
    """
    run = Run("sinks", {}, SteppedClock())
    run.advance("fill", 0, 0)
    run.advance("fill", 50, 200)

    assert 25.0 == run.document()["steps"][0]["percent"]


def test_only_one_run_of_a_kind_is_active_at_a_time(runs, audit):
    """
    The second one is refused until the first one has ended.
    """
    may_end = threading.Event()

    def work(_run):
        may_end.wait(5)
        return RunEnd("equal")

    runs.begin("verify", "verify", {"who": "token"}, work)
    with pytest.raises(ConflictError, match="one at a time") as refused:
        runs.begin("verify", "verify", {}, work)
    runs.begin("sinks", "sink drop", {}, lambda _: RunEnd("dropped"))
    may_end.set()
    first = ended(runs)
    runs.begin("verify", "verify", {}, lambda _: RunEnd("different"))

    assert HTTPStatus.CONFLICT == refused.value.status
    assert ("ended", "equal", "different") == (
        *(first["state"], first["outcome"]),
        ended(runs)["outcome"],
    )
    assert {"verify ended", "sink drop ended"} == {
        line["event"] for line in audit.newest(10)
    }


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (UsageError("no such route"), "no such route. Correct the command"),
        (ZeroDivisionError(), "failed: ZeroDivisionError"),
    ],
)
def test_a_failed_run_ends_with_its_reason(runs, audit, error, outcome):
    """
    The page and the audit log show the reason, and a new run may begin.
    """

    def work(_run):
        raise error

    runs.begin("verify", "verify", {}, work)
    run = ended(runs)

    assert ("failed", True) == (run["state"], run["outcome"].startswith(outcome))
    assert run["outcome"] == audit.newest(1)[0]["outcome"]


def test_a_run_shows_its_newest_lines():
    """
    A long drop must not use up the memory.
    """
    run = Run("sink drop", {}, SystemClock())
    for number in range(500):
        run.say(str(number))
    lines = run.document()["lines"]

    assert (200, "499") == (len(lines), lines[-1])


def test_fields_derived_from_a_hidden_column_are_hidden(tmp_path):
    """
    They include a mask's target, a template that uses it, and the template's new name.
    """
    chosen = settings(
        tmp_path,
        {"mask": "card", "to": "masked"},
        {"template": "{masked} of {city}", "to": "label"},
        {"rename": "label", "to": "caption"},
        {"template": "{city}", "to": "place"},
    )
    hidden = hidden_fields(chosen, chosen.sink[0].route[0])

    assert {"card", "masked", "label", "caption"} == hidden


def test_a_masked_column_is_hidden_under_its_name_in_the_topic(tmp_path):
    """
    This holds after a rename or a template, and in the sink's dead letters.
    """
    chosen = settings(
        tmp_path,
        {"rename": "ssn", "to": "tax_id"},
        {"mask": "tax_id"},
        {"template": "{first} {last}", "to": "whole"},
        {"hash": "whole", "salt": "key"},
    )
    route = chosen.sink[0].route[0]
    renamed = route.model_copy(update={"rename": {"tax_id": "number"}})
    topics = ("towpath.shop.orders", "towpath.dead.cache", "towpath.dead.relay")
    clear = hidden_columns(chosen, "towpath.shop.items")

    assert [{"ssn", "first", "last"}] * 3 == [hidden_columns(chosen, t) for t in topics]
    assert (set(), True) == (clear, "number" in hidden_fields(chosen, renamed))


def test_a_too_deeply_nested_value_is_shown_as_its_size():
    """
    Such a record does not hide the others on its page.
    """
    depth = 100_000
    value = b'{"a":' * depth + b"1" + b"}" * depth

    assert "nested too deeply" in shown_value(value, frozenset({"b"}))


def test_hidden_values_are_not_in_the_differences(tmp_path):
    """
    A fault may have left the clear value in the sink; other columns are shown.
    """
    chosen = settings(tmp_path, {"mask": "card"})
    found = [
        Difference(DifferenceKind.CHANGED, "7", "card", "****", "4711"),
        Difference(DifferenceKind.CHANGED, "7", "city", "Bonn", None),
    ]
    route = RouteReport("orders", "shop.orders", differences=2, first=tuple(found))
    result = shown_result(chosen, chosen.sink[0], Verification("cache", [route]))

    assert ("different", [(HIDDEN, HIDDEN), ("Bonn", None)]) == (
        result["result"],
        [(one["source"], one["sink"]) for one in result["routes"][0]["first"]],
    )


def test_a_sink_is_changed_only_where_its_state_folder_is(tmp_path):
    """
    If there are no sinks, the first one may be added anywhere.
    """
    chosen = settings(tmp_path)
    empty = chosen.model_copy(update={"sink": ()})
    before = missing_folder_reason(chosen, "cache"), missing_folder_reason(chosen)
    sink_folder(tmp_path, "cache").mkdir(parents=True)

    assert all("holds no state of" in sentence for sentence in before)
    assert ("", "", "") == (
        *(missing_folder_reason(chosen, "cache"), missing_folder_reason(chosen)),
        missing_folder_reason(empty),
    )


@pytest.mark.parametrize(
    "block", ["[[sink", "a = 1", "sink = 7", "[[sink]]\nkind = 'cache'"]
)
def test_a_block_without_one_named_sink_is_refused(block):
    """
    The block is refused before the run begins.
    """
    with pytest.raises(UsageError):
        _ = AddSinkInput(block=block).name


@pytest.mark.parametrize("speed", [0, 2**31])
@pytest.mark.parametrize(
    "document",
    [partial(AddSinkInput, block="b"), partial(RefillInput, sink="s"), SnapshotInput],
)
def test_a_speed_that_the_relay_refuses_is_refused_before_the_run(document, speed):
    """
    Otherwise the sink would be declared but would lack its rows.
    """
    assert document(max_rows_per_second=2**31 - 1).max_rows_per_second
    with pytest.raises(ValidationError, match="max_rows_per_second"):
        document(max_rows_per_second=speed)


def test_a_sink_that_cannot_be_verified_does_not_block_others(
    runs, tmp_path, monkeypatch
):
    """
    A target's refusal becomes the sink's result, as an outage does.
    """

    def verifier(_settings, name, _options):
        def compare(_advance):
            if name == "other":
                raise SearchRefusedError("the index refuses the login")  # noqa: EM101, TRY003
            return Verification(name, [RouteReport("orders", "shop.orders")])

        return SimpleNamespace(compare=compare)

    monkeypatch.setattr(long_actions, "verifier_of", verifier)
    monkeypatch.setattr(long_actions, "actor", dict)
    declared = settings(tmp_path)
    other = declared.sink[0].model_copy(update={"name": "other"})
    both = declared.model_copy(update={"sink": (*declared.sink, other)})
    requested = VerificationInput(sinks=["other", "cache"])
    begin_verification(both, runs, requested).act()
    run = ended(runs)

    assert "other could not be verified; cache equals the source" == run["outcome"]
    assert ["other", "cache"] == [one["sink"] for one in run["results"]]
    assert "failed" == run["state"]


def test_a_value_with_a_lone_surrogate_is_shown():
    """
    A json column may contain one, but a page in UTF-8 cannot.
    """
    text = shown_value(b'{"note":"\\ud800 \xc3\xbc"}', frozenset())

    assert '"note": "\\ud800 \u00fc"' in text
    assert text == text.encode().decode()
