"""Regular expressions in ``[[source]] tables`` for init, doctor and relay."""

import pytest

from support.copying import replace
from towpath.relay.postgres.capture_checks import tables_to_capture
from towpath.relay.postgres.preflight import capture_findings, running_findings
from towpath.relay.postgres.relays import RelayFacts
from towpath.relay.postgres.setup import plan_setup, setup_notes
from towpath.relay.postgres.source_facts import (
    OWN_TABLES,
    MemberFacts,
    PublicationFacts,
    PublishedTable,
    ServerFacts,
    SourceFacts,
    TableFacts,
)
from towpath.relay.recovery.lineage import SlotHistory
from towpath.schemas.findings import CheckFinding, Severity
from towpath.settings import (
    FirstStart,
    Kafka,
    Registry,
    Relay,
    Settings,
    Snapshot,
    Source,
)

OWN = frozenset(OWN_TABLES)


def table(name: str, persistence: str = "p") -> TableFacts:
    """Describe a table with a key."""
    return TableFacts(
        "r",
        False,
        ("id",),
        (),
        (MemberFacts(name, persistence, "d", frozenset({"id"})),),
    )


def publication(*tables: str) -> PublicationFacts:
    """Describe a publication of these tables."""
    named = dict.fromkeys((*tables, "towpath.signal"), PublishedTable())
    return PublicationFacts(
        is_for_all=False, operations=(True,) * 4, via_root=True, tables=named
    )


EVENTS = replace(
    publication(),
    tables={"towpath.outbox": PublishedTable()},
    operations=(True, False, False, False),
)
FACTS = SourceFacts(
    server=ServerFacts(180006, "logical", "UTF8", keep_mebibytes=51_200),
    own_tables=OWN,
    tables={"s.a": table("s.a"), "s.loose": table("s.loose", "u")},
    publications={"towpath": publication("s.a"), "towpath_outbox": EVENTS},
    slot=SlotHistory(1, is_active=True),
    relays=RelayFacts({"towpath": 1}),
)


def settings_of(*tables: str, **snapshot: object) -> Settings:
    """Make settings with these tables."""
    return Settings(
        version=1,
        source=(Source(dsn="x", tables=tables),),
        kafka=Kafka(bootstrap_servers="x"),
        registry=Registry(url="http://x"),
        relay=Relay(snapshot=Snapshot.model_validate(snapshot)),
    )


def level_of(found: list[CheckFinding], what: str) -> Severity | None:
    """Return the level of the finding about a table or a setting."""
    return next((each.level for each in found if what in each.what), None)


@pytest.mark.parametrize(
    ("entries", "level", "captured"),
    [
        ((r"s\..*",), Severity.WARNING, ("s.a",)),
        (("s.loose", r"s\..*"), Severity.ERROR, ("s.loose", "s.a")),
    ],
)
def test_an_unsuitable_table_matched_by_an_expression_causes_a_warning(
    entries: tuple[str, ...], level: Severity, captured: tuple[str, ...]
):
    """
    A table that is listed by name must be suitable.

    A table that an expression matches is skipped with a warning.
    """
    settings = settings_of(*entries)

    assert level == level_of(capture_findings(FACTS, settings), "s.loose")
    assert captured == tables_to_capture(FACTS, settings)


def remedy_of(finding: str, published: PublishedTable) -> str:
    """Return the remedy for a finding about a table that is published this way."""
    towpath = publication("s.a")
    publications = {
        **FACTS.publications,
        "towpath": replace(towpath, tables={**towpath.tables, "s.a": published}),
    }
    facts = replace(FACTS, publications=publications)
    [found] = [
        each
        for each in capture_findings(facts, settings_of("s.a"))
        if each.id == finding
    ]
    return found.cure


@pytest.mark.parametrize(
    ("columns", "added"),
    [(None, '"s"."a"'), (frozenset({"id", "a"}), '"s"."a" ("a", "id")')],
)
def test_the_remedy_for_a_row_filter_keeps_the_column_list(columns, added):
    """
    The table is dropped from the publication and added again without the filter.
    """
    filtered = PublishedTable(columns, "(id > 0)")
    remedy = remedy_of("publication-row-filter", filtered)

    assert remedy.endswith(f" ADD TABLE ONLY {added}; COMMIT")


def test_the_remedy_for_a_column_list_keeps_other_tables_and_the_row_filter():
    """
    SET TABLE would remove every other table from the publication.
    """
    listed = PublishedTable(frozenset({"My Text"}), "(id > 0)")
    alter = 'ALTER PUBLICATION "towpath"'
    remedy = remedy_of("publication-columns-lack-key", listed)

    assert remedy.endswith(
        f'BEGIN; {alter} DROP TABLE ONLY "s"."a"; '
        f'{alter} ADD TABLE ONLY "s"."a" ("My Text", "id") WHERE ((id > 0)); COMMIT'
    )


def test_a_captured_table_that_became_unsuitable_is_an_error():
    """
    The error is reported before the table's changes silently go missing.
    """
    publications = {**FACTS.publications, "towpath": publication("s.a", "s.loose")}
    facts = replace(FACTS, publications=publications)
    settings = settings_of(r"s\..*")

    assert Severity.ERROR is level_of(capture_findings(facts, settings), "s.loose")
    assert [] == plan_setup(facts, settings)


def test_an_expression_without_a_match_is_reported():
    """
    It may be a typo, although a matching table may be created later.
    """
    found = capture_findings(FACTS, settings_of("s.a", r"shop\..*"))

    assert [r"[source] tables: shop\..* matches no table"] == [e.what for e in found]


@pytest.mark.parametrize(
    ("has_run", "fill", "added", "warnings"),
    [(False, True, True, 0), (True, True, False, 1), (True, False, True, 0)],
)
def test_init_leaves_new_tables_to_a_relay_that_fills_them(
    *, has_run: bool, fill: bool, added: bool, warnings: int
):
    """
    A table added by init is not filled, so init adds none that the relay would fill.
    """
    facts = replace(
        FACTS, tables={**FACTS.tables, "s.new": table("s.new")}, has_run=has_run
    )
    settings = settings_of(r"s\..*", fill_new_tables=fill)
    statements = " ".join(step.statement for step in plan_setup(facts, settings))

    assert (added, warnings) == (
        '"s"."new"' in statements,
        len(setup_notes(facts, settings)),
    )


@pytest.mark.parametrize(
    ("mode", "has_run", "is_left"),
    [
        (FirstStart.INITIAL, False, True),
        (FirstStart.INITIAL_ONLY, False, True),
        (FirstStart.WHEN_NEEDED, False, True),
        (FirstStart.INITIAL, True, False),
        (FirstStart.ALWAYS, False, False),
        (FirstStart.NEVER, False, False),
    ],
)
def test_init_leaves_the_slot_to_the_initial_snapshot(
    mode: FirstStart, *, has_run: bool, is_left: bool
):
    """
    Init says that the relay will create the slot; doctor does not report it as missing.
    """
    facts = replace(FACTS, slot=None, has_run=has_run)
    settings = settings_of("s.a", mode=mode)
    made = any("slot" in step.purpose for step in plan_setup(facts, settings))
    missing_level = level_of(
        running_findings(facts, settings), "slot towpath is missing"
    )

    assert (is_left, is_left, is_left) == (
        not made,
        missing_level is None,
        any(
            "created by towpath relay run" in note
            for note in setup_notes(facts, settings)
        ),
    )


def test_a_bare_signal_table_is_published():
    """
    I-02: signals in a user's own table arrive through the stream.
    """
    settings = settings_of("s.a", signal_table="s.requests")
    [step] = plan_setup(FACTS, settings)

    assert step.statement.endswith('add table only "s"."requests"')
