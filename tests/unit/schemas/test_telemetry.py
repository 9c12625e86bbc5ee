"""The registry of metrics: names, kinds, and the tables of docs/metrics.md."""

import re

import pytest

from support.exposition import mistakes
from support.pages import DOCS, imported_program
from towpath.schemas.telemetry import Metric, published

# Units of Prometheus, and nouns for quantities without a unit.
UNITS = {"bytes", "seconds", "xid", "info"}
COUNTED = {
    *("active", "alarm", "counter", "differences", "events", "failing", "keys"),
    "problems",
    *("records", "refetches", "rows", "sagas"),
    *("state", "status", "streaming", "tables", "yielding"),
}


@pytest.fixture(scope="module")
def tables():
    """Import the program that writes the tables."""
    return imported_program(DOCS / "monitoring_tables.py")


def test_a_metrics_name_has_part_quantity_and_unit():
    """
    Counters end in ``_total``, histograms in seconds, gauges in a unit or a noun.
    """
    ends = {
        "counter": {"total"},
        "histogram": {"seconds"},
        "info": {"info"},
        "gauge": UNITS | COUNTED,
    }
    parts = ("build", "relay", "snapshot", "sink", "inbox", "service")
    form = re.compile(rf"towpath_(?:{'|'.join(parts)})(?:_[a-z]+)+")
    metrics = list(published())

    assert len(metrics) == len(set(metrics)) > 60
    assert [] == [m for m in metrics if not form.fullmatch(m)]
    assert [] == [m for m in metrics if m.rpartition("_")[2] not in ends[m.kind]]


def test_keys_and_offsets_are_not_labels():
    """
    Each label has few values, which are configured or constant.
    """
    bounded = {"consumer", "partition", "reason", "sink", "stage", "state", "status"}
    # Path templates and event types have few values, too.
    bounded |= {"event", "method", "route"}
    labels = {label for metric in published() for label in metric.labels}

    assert labels == bounded | {"table", "topic", "version", "python"}


def test_the_tables_of_the_page_match_the_registry(tables):
    """
    After a change to a metric, run make docs.
    """
    text = tables.PAGE.read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(towpath_\w+)[{`]", text, re.MULTILINE)

    assert text == tables.page_of(text, published())
    assert sorted(listed) == sorted(published())


def test_the_table_of_alerts_matches_the_rules(tables):
    """
    After a change to a rule, run make docs.
    """
    text = tables.ALERTS_PAGE.read_text(encoding="utf-8")
    rules = tables.RULES.read_text(encoding="utf-8")

    assert text == tables.alerts_page_of(text, rules)
    assert text.count("| [Towpath") == rules.count("- alert: ") > 20


PAGE = """\
# HELP towpath_build_info {help}
# TYPE towpath_build_info gauge
towpath_build_info{{python="3",version="1"}} 1.0
"""


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        ("}} 1.0", "}} 1.0", None),
        (" gauge", " counter", "not on the page"),
        ("{help}", "Versions.", "has the description: Versions."),
        ('version="1"', 'release="1"', "has the labels ('python', 'release')"),
        (PAGE, "", "not on the page"),
        ("build_info", "build_facts", "not in the registry"),
    ],
)
def test_a_planted_difference_is_found(old, new, mistake):
    """
    The check finds wrong kinds, descriptions and labels, and missing and unknown names.
    """
    (metric,) = (m for m in published() if m.kind == "info")
    page = PAGE.replace(old, new).format(help=metric.help)
    found = mistakes(page, ("towpath_build_",))

    assert (mistake is None) == (found == [])
    assert mistake is None or any(mistake in line for line in found)


def test_a_metric_is_a_string_with_a_help_sentence():
    """
    It can be used wherever its name is expected.
    """
    metric = Metric("towpath_a_b", "gauge", "how many there are", "one", "two")

    assert (metric, metric.kind) == ("towpath_a_b", "gauge")
    assert (metric.labels, metric.help) == (("one", "two"), "How many there are.")
