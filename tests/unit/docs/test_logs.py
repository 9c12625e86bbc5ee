"""The list of log records matches the source, and their texts follow the rule."""

import re

import pytest

from support.glossary import banned
from support.pages import DOCS, ROOT, imported_program, name_of, pages

_QUOTED = re.compile(r"log says ((?:`[^`]+`(?:,| or| and)? ?)+)")


@pytest.fixture(scope="module")
def logs():
    """Import the program that writes the page."""
    return imported_program(DOCS / "log_records.py")


@pytest.fixture(scope="module")
def records(logs):
    """Read the log records from the source."""
    return logs.log_records(ROOT)


def mistakes_of(record, nouns):
    """Yield the mistakes in the text of a log record."""
    first = record.event.split()[0]
    if record.noun not in nouns:
        yield f"{record.event}: starts with no noun of docs/log_records.py"
    if not (first.islower() or first.isupper()) or record.event.endswith("."):
        yield f"{record.event}: is written like a sentence"
    if words := banned().intersection(re.findall("[a-z]+", record.event.lower())):
        yield f"{record.event}: has words that the glossary bans: {words}"


# The test parses every module, which takes seconds on a busy machine.
@pytest.mark.timeout(60)
def test_the_page_lists_the_records_of_the_source(logs, records):
    """
    After a change to a record, run make docs.
    """
    page = logs.PAGE.read_text(encoding="utf-8")

    assert page == logs.page_of(records)
    assert len(records) > 100


@pytest.mark.timeout(60)
def test_a_record_starts_with_a_searchable_noun(logs, records):
    """
    Each text starts with a listed noun in lower case, and every listed noun is used.
    """
    found = [line for each in records for line in mistakes_of(each, logs.NOUNS)]

    assert found == []
    assert set(logs.NOUNS) == {record.noun for record in records}


@pytest.mark.timeout(60)
def test_a_record_that_a_page_quotes_exists(records):
    """
    After the words "the log says", a page quotes texts of the source.
    """
    events = [record.event for record in records]
    missing = [
        f"{name_of(page)}: {text}"
        for page in pages()
        for quoted in _QUOTED.findall(page.read_text(encoding="utf-8"))
        for text in re.findall(r"`([^`]+)`", quoted)
        if not any(event.startswith(text) for event in events)
    ]

    assert missing == []


def test_a_planted_record_is_found_in_each_form(logs):
    """
    Constants, strings with placeholders, alternatives and counted reasons are read.
    """
    source = """
        _LOG.warning("slot gone", slot=name)
        self._log.info(f"table {event}", **more)
        get_logger("a").error("a" if x else "b", reason=why)
        self._count(counter, "value altered", reason)
        catalog.info("no record")
        _LOG.info(variable)
    """
    found = {
        (record.event, record.level, record.fields)
        for record in logs.records_of("if True:\n" + source, "m")
    }

    assert found == {
        ("slot gone", "warning", ("slot",)),
        ("table {...}", "info", ()),
        ("a", "error", ("reason",)),
        ("b", "error", ("reason",)),
        ("value altered", "warning", ("reason",)),
    }


@pytest.mark.parametrize(
    ("event", "mistake"),
    [
        ("the slot is gone", "no noun"),
        ("Slot gone", "like a sentence"),
        ("slot gone.", "like a sentence"),
        ("slot made anew", "bans"),
    ],
)
def test_a_planted_text_is_refused(logs, event, mistake):
    """
    Each part of the rule rejects a text that breaks it.
    """
    record = logs.LogRecord(event, "info", (), "m")

    assert any(mistake in line for line in mistakes_of(record, logs.NOUNS))
