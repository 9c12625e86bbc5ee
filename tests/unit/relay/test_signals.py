"""Parsing of signals, and the reasons for rejecting them."""

import json

import pytest

from towpath.relay.snapshot.naming import expand
from towpath.relay.snapshot.signal_processor import with_filters
from towpath.relay.snapshot.signals import (
    ExecuteSnapshot,
    LogMessage,
    PauseSnapshot,
    ResumeSnapshot,
    SignalRejectedError,
    StopSnapshot,
    parse_signal,
)

CAPTURED = ("shop.customers", "shop.orders", "shop.order_lines")


def test_a_complete_signal_is_read():
    """
    Both Debezium's fields and this project's additional ones are read.
    """
    data = {
        "data-collections": ["shop.orders", "shop.orders"],
        "type": "INCREMENTAL",
        "additional-conditions": [
            {"data-collection": "shop.orders", "filter": "id > 5"}
        ],
        "target": "search2",
        "max-rows-per-second": 100,
    }

    assert ExecuteSnapshot(
        ("shop.orders",), {"shop.orders": "id > 5"}, "search2", 100
    ) == parse_signal("execute-snapshot", json.dumps(data))


def test_listed_keys_keep_their_exact_spelling():
    """
    Numbers keep all their digits, and a key that is listed twice counts once.
    """
    keys = '[[1, "a"], [9007199254740993, true], [1.10, "é"], [1, "a"]]'
    data = f'{{"data-collections": ["a.b"], "keys": {keys}}}'

    assert (
        (b"1", b"a"),
        (b"9007199254740993", b"true"),
        (b"1.10", "é".encode()),
    ) == parse_signal("execute-snapshot", data).keys


@pytest.mark.parametrize(
    ("kind", "data", "request_"),
    [
        ("stop-snapshot", None, StopSnapshot(())),
        ("stop-snapshot", '{"data-collections": ["a.b"]}', StopSnapshot(("a.b",))),
        ("stop-snapshot", '{"type": "INCREMENTAL"}', StopSnapshot()),
        ("pause-snapshot", None, PauseSnapshot()),
        ("resume-snapshot", '{"snapshot-id": "s1"}', ResumeSnapshot((), "s1")),
        ("log", '{"message": "hello"}', LogMessage("hello")),
        ("log", "{}", LogMessage("")),
        ("log", '{"message": null}', LogMessage("")),
    ],
)
def test_stop_and_log_signals_are_read(kind, data, request_):
    """
    A stop has a list or no data, and a log signal has a message.
    """
    assert request_ == parse_signal(kind, data)


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        ("dance", "{}", "unknown signal type 'dance'"),
        ("pause-snapshot", '{"snapshot-id": 7}', "must be a snapshot's id"),
        ("pause-snapshot", '{"snapshot": "s1"}', "unknown field 'snapshot'"),
        ("execute-snapshot", "{", "not JSON"),
        ("execute-snapshot", "[" * 100_000, "not JSON"),
        ("execute-snapshot", "[]", "must be a JSON object"),
        ("execute-snapshot", None, "at least one table"),
        ("execute-snapshot", '{"data-collections": "a.b"}', "a list of names"),
        ("execute-snapshot", '{"data-collections": [7]}', "a list of names"),
        ("execute-snapshot", '{"data-collections": [""]}', "a list of names"),
        *(
            (
                "execute-snapshot",
                f'{{"data-collections": ["a.b"], "keys": {keys}}}',
                reason,
            )
            for keys, reason in (
                ("null", "keys must be a list of keys"),
                ("[]", "keys must be a list of keys"),
                ("[1]", "key 1 is not a list of values"),
                ("[[]]", "key [] is not a list of values"),
                ("[[null]]", "null in a key is not text, a number"),
                ("[[[1]]]", "[1] in a key is not text, a number"),
                ('[["\\u0000"]]', "not text that Postgres can store"),
                ('[["\\ud800"]]', "not text that Postgres can store"),
                (str([[n] for n in range(10_001)]), "at most 10000 are allowed"),
            )
        ),
        (
            "execute-snapshot",
            json.dumps(
                {
                    "data-collections": ["a.b"],
                    "keys": [[1]],
                    "additional-conditions": [
                        {"data-collection": "a.b", "filter": "x"}
                    ],
                }
            ),
            "cannot be combined",
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["a.b"], "typ": "incremental"}',
            "unknown field 'typ'",
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["a.b"], "type": "initial"}',
            "'initial' is not one of incremental, blocking",
        ),
        *(
            ("execute-snapshot", f'{{"data-collections": ["a.b"], {fields}}}', reason)
            for fields, reason in (
                ('"type": "blocking", "keys": [[1]]', "a blocking snapshot takes none"),
                ('"keys": [[1]], "sweep": true', "keys and sweep cannot be combined"),
                (
                    '"keys": [[1]], "surrogate-key": "x"',
                    "keys and surrogate-key cannot be",
                ),
                ('"sweep": 1', "sweep must be true or false"),
                ('"columns": []', "columns must be a list of names"),
                ('"columns": "a"', "columns must be a list of names"),
                (
                    '"columns": ["a"], "sweep": true',
                    "columns and sweep cannot be combined",
                ),
                (
                    '"columns": ["a"], "keys": [[1]]',
                    "keys and columns cannot be combined",
                ),
                (
                    '"columns": ["a"], "additional-condition": "x"',
                    "columns and additional-condition cannot",
                ),
                ('"columns": ["a"], "type": "blocking"', "columns are read incremen"),
                ('"sweep": true, "additional-condition": "x"', "sweep cannot be"),
                ('"surrogate-key": [""]', "surrogate-key must be the name of a column"),
                ('"surrogate-key": 7', "surrogate-key must be the name of a column"),
                (
                    '"type": "blocking", "additional-condition": "id > 5"',
                    "must be a whole SELECT",
                ),
                (
                    '"additional-condition": "x", "additional-conditions": ["y"]',
                    "cannot be combined",
                ),
                ('"additional-condition": 7', "must be an SQL expression"),
                ('"type": 7', "snapshot type 7 is not one of"),
            )
        ),
        ("execute-snapshot", '{"data-collections": ["a\\u0000"]}', "a list of names"),
        (
            "execute-snapshot",
            '{"data-collections": ["a.b"], "target": 7}',
            "name of a sink",
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["a.b"], "max-rows-per-second": 0}',
            "from 1 to 2147483647",
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["a.b"], "max-rows-per-second": 3000000000}',
            "from 1 to 2147483647",
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["a.b"], "surrogate-key": "a\\u0000b"}',
            "surrogate-key must be",
        ),
        (
            "execute-snapshot",
            json.dumps({"data-collections": ["a" * 501]}),
            "more than 500 characters",
        ),
        ("log", '{"message": "a\\u0000b"}', "text that Postgres can store"),
        ("log", '{"n": 1e9999999999999999999}', "not JSON"),
        (
            "execute-snapshot",
            '{"data-collections": ["a.b"], "max-rows-per-second": true}',
            "from 1 to 2147483647",
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["a.b"], "additional-conditions": ["x"]}',
            "a data-collection and a filter",
        ),
        (
            "execute-snapshot",
            json.dumps(
                {
                    "data-collections": ["a.b"],
                    "additional-conditions": [{"data-collection": "(", "filter": "x"}],
                }
            ),
            "not a regular expression",
        ),
    ],
)
def test_an_invalid_signal_is_rejected_with_its_reason(kind, data, reason):
    """
    Each mistake in a signal is named in its answer (A40).
    """
    with pytest.raises(SignalRejectedError) as rejection:
        parse_signal(kind, data)

    assert reason in str(rejection.value)


def test_a_deeply_nested_signal_is_rejected_at_every_depth():
    """
    A value that can still be parsed is shown in the reason; deeper JSON is refused.
    """
    for depth in range(3, 1_100):
        nested = "[" * depth + "]" * depth
        data = f'{{"data-collections": ["a.b"], "keys": [{nested}]}}'
        with pytest.raises(SignalRejectedError):
            parse_signal("execute-snapshot", data)


def test_names_and_patterns_select_captured_tables_once():
    """
    A pattern matches whole names, and a table found twice is read once (A10, A11).
    """
    expansion = expand(
        ["shop.orders", r"shop\.order.*", "order", "shopXorders", "[", "none.*"],
        CAPTURED,
    )

    assert ("shop.orders", "shop.order_lines") == expansion.collections
    assert ["order", "shopXorders", "["] == list(expansion.refusals)


class CountedTables(tuple[str, ...]):
    """Captured tables that count how often all of them are visited."""

    __slots__ = ()
    visits = 0

    def __iter__(self):
        type(self).visits += 1
        return super().__iter__()


def test_the_tables_are_visited_once_for_many_names():
    """
    A gap's signal lists every captured table, and the stream waits for its expansion.
    """
    known = CountedTables(f"shop.t{number}" for number in range(500))
    names = [f"shop.t{number}" for number in range(500)]

    assert tuple(names) == expand(names, known).collections
    assert known.visits < 5


def test_a_refused_entry_with_a_quote_is_not_a_table_name():
    """
    It is stored as a failed table, with which later signals are compared.
    """
    assert () == expand(["shop.orders"], ['"abc', 'a"b']).collections


@pytest.mark.parametrize("entry", [r"shop\.a{99999999999}", "(" * 5000 + ")" * 5000])
def test_a_regular_expression_that_cannot_be_compiled_is_refused(entry):
    """
    Neither its numbers nor its nesting may end the relay.
    """
    found = expand([entry, "shop.orders"], CAPTURED)

    assert ("shop.orders",) == found.collections
    assert "not a regular expression" in found.refusals[entry]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (r"shop\.(?!orders).*", "in linear time: look-around"),
        (r"shop\.(o)\1", "in linear time: backreferences"),
        (r"shop\.(\w{9}){9999}", "in linear time: SchemaError: Compiled regex exceeds"),
        ("a)|(b", "not a regular expression: unbalanced parenthesis"),
        (r"shop\.[a-z--b]+", "ambiguous regular expression: Possible set difference"),
        (r"shop\.[a-z&&o]+", "ambiguous regular expression: Possible set intersection"),
        (r"shop\.[[a-z]]+", "ambiguous regular expression: Possible nested set"),
    ],
)
def test_a_regular_expression_with_unsupported_syntax_is_refused(entry, reason):
    """
    It must have one meaning and a search in linear time; the reason names the problem.
    """
    found = expand([entry, "shop.orders"], CAPTURED)

    assert ("shop.orders",) == found.collections
    assert reason in found.refusals[entry]


def test_an_ambiguous_regular_expression_is_matched_quickly():
    """
    A backtracking search would try each of the 2^50 divisions of the name.
    """
    name = "shop." + "a" * 50

    assert () == expand([r"shop\.(\w+_?)+-old"], [name]).collections
    assert (name,) == expand([r"shop\.(\w+_?)+"], [name]).collections


@pytest.mark.parametrize(
    ("conditions", "condition"),
    [
        ({"shop.orders": "a"}, "a"),
        ({r"shop\..*": "b"}, "b"),
        ({"shop.customers": "c"}, None),
        ({"shop.orders": ""}, None),
    ],
)
def test_a_filter_applies_to_the_tables_that_it_names(conditions, condition):
    """
    A filter's table may be a pattern, too; an empty filter does not apply.
    """
    captured = ["shop.orders", "shop.customers"]
    request = with_filters(ExecuteSnapshot((".*",), conditions), captured, captured)

    assert condition == request.condition_of("shop.orders")


@pytest.mark.parametrize(
    ("fields", "request_"),
    [
        (
            {"additional-condition": "id > 5 or v", "surrogate-key": "other"},
            ExecuteSnapshot(
                ("shop.orders",), {".*": "id > 5 or v"}, order_by=("other",)
            ),
        ),
        (
            {"columns": ["a", 'b"c']},
            ExecuteSnapshot(
                ("shop.orders",),
                {".*": '"a" is not null or "b""c" is not null'},
                sweeps=True,
            ),
        ),
        (
            {"surrogate-key": ["b", "a"], "sweep": True},
            ExecuteSnapshot(("shop.orders",), {}, order_by=("b", "a"), sweeps=True),
        ),
        (
            {"type": "Blocking", "additional-condition": " SELECT * FROM shop.orders"},
            ExecuteSnapshot(
                ("shop.orders",), {".*": " SELECT * FROM shop.orders"}, kind="blocking"
            ),
        ),
    ],
)
def test_the_options_of_a_snapshot_signal_are_read(fields, request_):
    """
    Chosen keys, sweeps and blocking snapshots are read (A29, A38).

    A single condition in Debezium's older form is read, too.
    """
    data = {"data-collections": ["shop.orders"], **fields}

    assert request_ == parse_signal("execute-snapshot", json.dumps(data))


@pytest.mark.parametrize(
    ("entry", "collections"),
    [
        ('"public"."orders"', ("public.orders",)),
        ('public."orders"', ("public.orders",)),
        ('"public"."My.Table"', ('public."My.Table"',)),
        ('"public"."a(b"', ("public.a(b",)),
        ('"public"."say ""hi"""', ('public.say "hi"',)),
        ("public.My.Table", ('public."My.Table"',)),
        ("outbox.order", ("outbox.order",)),
        (r"public\.o.*", ("public.orders",)),
        ('"public"."missing"', ()),
    ],
)
def test_quoted_names_are_literal(entry, collections):
    """
    A name in double quotes is not a pattern, and may have any characters (A38).
    """
    known = (
        *("public.orders", 'public."My.Table"', "public.a(b", 'public.say "hi"'),
        "outbox.order",
    )

    assert collections == expand([entry], known).collections


def test_an_aggregate_type_selects_all_of_its_views():
    """
    Additional views of a type have a suffix; each of them can also be selected alone.
    """
    known = ["outbox.order", "outbox.order.totals", "outbox.orders", "s.order"]

    assert (("outbox.order", "outbox.order.totals"), ("outbox.order.totals",)) == (
        expand(["outbox.order"], known).collections,
        expand(["outbox.order.totals"], known).collections,
    )


def test_a_logged_message_has_its_position():
    """
    Braces in it are replaced with the signal's position, as in Debezium (A40).
    """
    assert {"message": "at 0a.1", "position": "0a.1"} == LogMessage("at {}").fields(
        "0a.1"
    )


@pytest.mark.parametrize(
    ("entry", "collections"),
    [
        ("s.a|b", ("s.a|b",)),
        ("s.a$", ("s.a$",)),
        ("s.a.b", ()),
        ('s."a.b"', ('s."a.b"',)),
        ('"s.a".b', ('"s.a".b',)),
        (r"s\.a\.b", ('"s.a".b', 's."a.b"')),
        ("s.[ab]", ("s.[ab]",)),
        ('s."[ab]"', ("s.[ab]",)),
        (r"s\..", ("s.a", "s.b")),
    ],
)
def test_an_exact_name_is_not_a_regular_expression(entry, collections):
    """
    A name that several tables share without quotes selects none of them.
    """
    known = ["s.a|b", "s.a", "s.a$", "s.b", '"s.a".b', 's."a.b"', "s.[ab]"]
    found = expand([entry], known, unmatched="nothing")

    assert collections == found.collections
    assert (not collections) == bool(found.refusals)


def test_a_regular_expression_that_matches_nothing_is_refused():
    """
    A signal whose expression matches nothing must not end as completed.
    """
    found = expand([r"none\..*"], ["s.a"], unmatched="nothing matches")

    assert ((), {r"none\..*": "nothing matches"}) == (found.collections, found.refusals)
