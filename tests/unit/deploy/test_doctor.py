"""The doctor's report, worst findings first and limited in time, and machine checks."""

import errno
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.copying import replace
from support.pages import ROOT, anchors
from towpath.deploy.cli.doctor import exit_code
from towpath.deploy.doctor import (
    Check,
    DoctorFinding,
    run_checks,
)
from towpath.deploy.doctor.machine import (
    FolderFacts,
    MachineFacts,
    findings_of,
    read_machine,
    settings_findings,
)
from towpath.deploy.doctor.servers import subject_findings
from towpath.relay.errors import SourceRefusedError, SourceUnavailableError
from towpath.schemas.failure import TooManyFilesError, UsageError
from towpath.schemas.findings import (
    SqlFix,
    TopicFix,
    clock_findings,
    error_finding,
    info_finding,
    warning_finding,
)
from towpath.settings import Kafka, Relay, Route, Settings, Sink, Snapshot, Source

SETTINGS = Settings(
    version=1,
    source=(Source(dsn="x"),),
    kafka=Kafka(bootstrap_servers="localhost:1,[::1]:2,127.0.0.1:3"),
)
SINK = Sink(
    name="s", kind="cache", url="redis://x", route=(Route(topic="t", name="r"),)
)
FOLDER = FolderFacts(Path("/s"), is_writable=True, free_bytes=2**40)
MACHINE = MachineFacts((3, 12), FOLDER, {"p": "1"}, {"p": "1"}, Path("/java"), 0)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def raising(error: Exception):
    """Return a check that raises an error."""

    def run():
        raise error

    return run


def test_the_worst_findings_come_first_regardless_of_their_part():
    """
    Errors come first, then failed checks, then warnings, then information.
    """
    info, warning = info_finding("i", "", "", ""), warning_finding("w", "", "", "")
    found = run_checks(
        [
            Check("a", lambda: [info, warning]),
            Check("b", raising(SourceUnavailableError("gone"))),
            Check("c", lambda: [error_finding("e", "", "", "")]),
        ]
    )

    assert [(row.part, row.id) for row in found] == [
        ("c", "e"),
        ("b", "part-unavailable"),
        ("a", "w"),
        ("a", "i"),
    ]


def test_a_failing_check_reports_why_and_hides_no_other():
    """
    A mistake is an error with the remedy; a defect in the doctor is reported as one.
    """
    found = run_checks(
        [
            Check("a", raising(UsageError("no sink"))),
            Check("b", raising(KeyError("x"))),
            Check("c", lambda: [info_finding("i", "", "", "")]),
        ]
    )

    assert [(row.level, row.id, row.what) for row in found] == [
        ("error", "part-refused", "no sink"),
        ("unavailable", "check-broken", "the check ended with KeyError: 'x'"),
        ("info", "i", ""),
    ]
    assert found[0].cure == UsageError.remedy


def test_the_page_of_a_halting_error_is_its_heading_in_the_runbook():
    """
    A transient error has its own paragraph on the doctor's page.
    """
    checks = [
        Check("a", raising(SourceRefusedError("no right"))),
        Check("b", raising(SourceUnavailableError("gone"))),
    ]
    pages = [row.page for row in run_checks(checks)]

    assert pages == [
        "docs/runbook.md#sourcerefusederror",
        "docs/doctor.md#part-unavailable",
    ]
    for page in pages:
        name, _, anchor = page.partition("#")
        assert anchor in anchors(ROOT / name)


def test_a_check_without_file_descriptors_reports_it():
    """
    This process's own limit is not a defect, and has a remedy.
    """
    [row] = run_checks([Check("a", raising(OSError(errno.EMFILE, "x")))])

    assert (row.id, row.cure) == ("part-unavailable", TooManyFilesError.remedy)


def test_a_check_that_hangs_is_abandoned():
    """
    The others are reported, and the process can end.
    """
    ended = threading.Event()

    def hang():
        ended.wait(60)
        return []

    try:
        rows = run_checks([Check("a", hang), Check("b", list)], limit_s=0.2)
    finally:
        ended.set()

    assert [(row.part, row.level, row.id, row.what) for row in rows] == [
        ("a", "unavailable", "check-too-slow", "the check did not end within 0.2 s")
    ]


@pytest.mark.parametrize(
    ("levels", "code"),
    [
        ([], 0),
        (["info"], 0),
        (["warning", "info"], 4),
        (["error", "warning"], 1),
        (["error", "unavailable"], 3),
    ],
)
def test_the_exit_code_is_that_of_the_worst_finding(levels: list[str], code: int):
    """
    Warnings are distinguished from errors, and an incomplete report from both.
    """
    rows = [DoctorFinding("p", level, "", "", "", "x") for level in levels]

    assert exit_code(rows) == code


def test_the_document_of_a_finding_is_stable():
    """
    docs/doctor.md lists the document's keys.
    """
    fix = TopicFix("t", "retention.ms", "-1")
    row = DoctorFinding("broker", "error", "what", "why", str(fix), "topic-x", fix)

    assert row.document() == {
        "id": "topic-x",
        "level": "error",
        "part": "broker",
        "what": "what",
        "why": "why",
        "cure": "kafka-configs.sh --bootstrap-server HOST:PORT --alter"
        " --entity-type topics --entity-name t --add-config retention.ms=-1",
        "page": "docs/doctor.md#topic-x",
        "fix": row.cure,
    }
    assert row._replace(fix=None).document()["fix"] is None


def test_a_fix_is_shown_as_the_remedy():
    """
    The report and --fix always agree.
    """
    found = warning_finding("x", "", "", SqlFix("ALTER TABLE t"))

    assert (found.cure, found.fix) == ("ALTER TABLE t", SqlFix("ALTER TABLE t"))


@pytest.mark.parametrize(
    ("offset_s", "relation"),
    [(-1.2, "behind"), (3.2, "ahead of"), (-1.0, None), (2.0, None)],
)
def test_a_clock_is_compared_with_the_whole_time_of_the_request(
    offset_s: float, relation: str | None
):
    """
    B82: the response took a second, which is not the fault of the server's clock.
    """
    after = NOW + timedelta(seconds=1)
    found = list(clock_findings("x", NOW + timedelta(seconds=offset_s), NOW, after))
    listed = [each.what for each in found]

    assert [relation in text for text in listed] == ([] if relation is None else [True])


@pytest.mark.parametrize(
    ("fields", "finding"),
    [
        ({"python": (3, 10)}, "machine-python"),
        ({"python": (3, 14)}, "machine-python"),
        ({"installed": {"p": "2"}}, "machine-package"),
        ({"installed": {}}, "machine-package"),
        ({"folder": FOLDER._replace(is_writable=False)}, "machine-state-folder"),
        ({"folder": FOLDER._replace(free_bytes=2**30 - 1)}, "machine-disk"),
        ({"java": None}, "machine-java"),
        ({"missing_jars": 1}, "machine-jars"),
    ],
)
def test_a_machine_that_cannot_run_a_part_is_found(fields, finding: str):
    """
    Versions, folder, disk, Java and archives are each checked separately.
    """
    found = findings_of(replace(MACHINE, **fields), has_sinks=True)

    assert [each.id for each in found] == [finding]
    assert list(findings_of(MACHINE, has_sinks=True)) == []


def test_a_machine_without_sinks_needs_no_java():
    """
    A relay alone runs without Spark.
    """
    bare = replace(MACHINE, java=None, missing_jars=9)

    assert list(findings_of(bare, has_sinks=False)) == []


def test_harmful_settings_are_found():
    """
    B33: sinks have no topic for their requests, or records are sent unencrypted.
    """
    silent = Relay(snapshot=Snapshot(signal_topic=""))
    without_topic = SETTINGS.model_copy(update={"relay": silent, "sink": (SINK,)})
    remote = SETTINGS.model_copy(
        update={"kafka": Kafka(bootstrap_servers="k.internal:9092,localhost:1")}
    )

    assert [each.id for each in settings_findings(SETTINGS)] == []
    assert [each.id for each in settings_findings(without_topic)] == [
        "settings-no-signal-topic"
    ]
    [plain] = settings_findings(remote)
    assert (plain.id, "k.internal" in plain.what, "localhost" in plain.what) == (
        "settings-kafka-plaintext",
        True,
        False,
    )


@pytest.mark.parametrize(
    ("protocol", "is_open"),
    [
        ("PLAINTEXT", True),
        ("sasl_plaintext", True),
        ("SSL", False),
        ("SASL_SSL", False),
    ],
)
def test_a_login_alone_does_not_encrypt_records(protocol: str, *, is_open: bool):
    """
    SASL_PLAINTEXT authenticates the relay, but sends the records in clear text.
    """
    remote = Kafka(
        bootstrap_servers="k.internal:9092", client={"security.protocol": protocol}
    )
    found = settings_findings(SETTINGS.model_copy(update={"kafka": remote}))

    assert is_open == ("settings-kafka-plaintext" in [each.id for each in found])


@pytest.mark.parametrize(
    ("mode", "found"),
    [("READONLY", ["registry-read-only"]), ("READWRITE", []), ("", [])],
)
def test_a_registry_that_accepts_nothing_is_found(mode: str, found: list[str]):
    """
    B72: the relay would halt at the first new schema; a registry may have no modes.
    """
    registry = SimpleNamespace(mode=lambda: mode, versions=lambda _: ())

    assert [each.id for each in subject_findings(registry, SETTINGS)] == found


def test_a_state_folder_that_this_user_may_not_read_is_found(monkeypatch, tmp_path):
    """
    The folder above it is not writable; the other facts are still read.
    """
    real_exists = Path.exists

    def exists(path):
        if path.parent.name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real_exists(path)

    folder = tmp_path / "closed" / "state"
    folder.parent.mkdir()
    monkeypatch.setattr(Path, "exists", exists)
    monkeypatch.setattr("os.access", lambda path, _mode: path != folder.parent)
    facts = read_machine(SimpleNamespace(state_folder=folder))

    assert (folder, False) == facts.folder[:2]
