"""Every line that one of our processes prints is one JSON object."""

import json
import os
import pty
import subprocess
import sys

LOGGING_PROGRAM = """
import logging, threading, warnings
import structlog
from towpath.settings.logs import configure_logs

LOG = structlog.get_logger("towpath.part")
configure_logs()

def fail(password):
    raise ValueError("no")

LOG.info("part started", fact=1)
with structlog.contextvars.bound_contextvars(sink="cache"):
    LOG.info("part of a sink started")
LOG.debug("not shown")
logging.getLogger("library").warning("said %d", 2)
logging.getLogger("library").error("said %d", "badly")
logging.getLogger("library").info("not said")
warnings.warn("careful")
try:
    fail("hunter2")
except ValueError:
    LOG.exception("failed")
thread = threading.Thread(target=fail, args=("hunter2",))
thread.start()
thread.join()
fail("hunter2")
"""


def run_program(log_format: str = "", program: str = LOGGING_PROGRAM):
    """Run a process that logs, warns and fails in every way."""
    prefix = ["env", f"TOWPATH_LOG_FORMAT={log_format}"] if log_format else []
    return subprocess.run(
        [*prefix, sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_line_is_json_with_time_level_logger_and_event():
    """
    Our records, libraries' records, warnings and failures have the same form.
    """
    result = run_program()
    records = [json.loads(line) for line in result.stderr.splitlines()]

    assert (
        "",
        1,
        [
            ("info", "towpath.part", "part started"),
            ("info", "towpath.part", "part of a sink started"),
            ("warning", "library", "library log record"),
            ("error", "library", "library log record"),
            ("warning", "py.warnings", "library log record"),
            ("error", "towpath.part", "failed"),
            ("critical", "towpath", "uncaught exception"),
            ("critical", "towpath", "uncaught exception"),
        ],
        {"part of a sink started": "cache"},
        True,
    ) == (
        result.stdout,
        result.returncode,
        [(one["level"], one["logger"], one["event"]) for one in records],
        {one["event"]: one["sink"] for one in records if "sink" in one},
        all(one["at"].endswith("Z") for one in records),
    )


def test_a_failure_is_logged_without_the_values_of_its_variables():
    """
    Tracebacks name code locations, but local variables may hold a credential.
    """
    printed = run_program().stderr

    assert (True, False) == ('"exc_value": "no"' in printed, "hunter2" in printed)


UNWRITABLE = """
import resource
import structlog
from towpath.settings.logs import configure_logs

configure_logs()
log = structlog.get_logger("towpath.part")
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
for number in range(1000):
    log.warning("disk full", number=number)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
log.warning("process continued")
"""


def test_a_record_that_cannot_be_written_does_not_end_the_process(tmp_path):
    """
    Lost records are counted and reported once standard error is writable.
    """
    path = tmp_path / "log"
    with path.open("wb") as file:
        ended = subprocess.run(
            [sys.executable, "-c", UNWRITABLE], stderr=file, check=False
        )
    lost, last = [json.loads(line) for line in path.read_text().splitlines()[-2:]]

    assert (0, 1000, "process continued") == (
        ended.returncode,
        lost["records"],
        last["event"],
    )


def test_the_human_format_has_lsns():
    """
    On request, a line has time, level, event, fields and LSNs, but no local variables.
    """
    program = LOGGING_PROGRAM.replace(
        '"part started", fact=1', '"part started", at=POSITION'
    ).replace("LOG =", 'POSITION = "00000000016b3748.0000000003"\nLOG =')
    result = run_program("human", program).stderr

    assert (True, False, False) == (
        "0/16B3748 #3" in result.splitlines()[0],
        "00000000016b3748" in result,
        "hunter2" in result,
    )


def test_a_terminal_gets_readable_lines():
    """
    Output that is not a terminal is JSON by default.
    """
    ours, theirs = pty.openpty()
    subprocess.run(
        [sys.executable, "-c", LOGGING_PROGRAM.partition("LOG.debug")[0]],
        stderr=theirs,
        check=True,
    )
    os.close(theirs)
    line = os.read(ours, 1000).decode()
    os.close(ours)

    assert (False, True) == (line.startswith("{"), "part started" in line)


def test_an_unknown_format_is_rejected():
    """
    The error names both formats.
    """
    assert "must be human or json, not 'xml'" in run_program("xml").stderr


def test_a_librarys_record_that_cannot_be_formatted_does_not_end_the_process():
    """
    Any error in formatting is ignored, as in the standard library's own handlers.
    """
    result = run_program(
        program="""
import logging
from towpath.settings.logs import configure_logs
configure_logs()
logging.getLogger("library").warning("said %(word)s", {"other": 1})
"""
    )
    (record,) = map(json.loads, result.stderr.splitlines())

    assert (0, "said %(word)s") == (result.returncode, record["line"])


def test_a_librarys_record_keeps_its_traceback_and_its_level():
    """
    A framework logs its handler's error; a custom level is mapped to one of ours.
    """
    result = run_program(
        program="""
import logging
from towpath.settings.logs import configure_logs
configure_logs()
log = logging.getLogger("library")
log.log(35, "audited")
try:
    raise ValueError("broken")
except ValueError:
    log.exception("failed")
log.exception("without one")
"""
    )
    records = [json.loads(line) for line in result.stderr.splitlines()]
    reasons = [one.get("exception", [{}])[0].get("exc_value") for one in records]

    assert (
        [("warning", "audited"), ("error", "failed"), ("error", "without one")],
        [None, "broken", None],
    ) == ([(one["level"], one.get("line")) for one in records], reasons)
