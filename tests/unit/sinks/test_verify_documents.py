"""Documents as JSON values: differences, and their paths."""

from decimal import Decimal
from itertools import chain

import pytest

from support.copying import replace
from towpath.sinks.ports import StoredRow
from towpath.sinks.verify.canonical import canonical_document, parsed
from towpath.sinks.verify.compare import (
    Difference,
    DifferenceKind,
    differences,
    suspects,
)
from towpath.sinks.verify.errors import UnfitViewError
from towpath.sinks.verify.forms import DocumentForm
from towpath.sinks.verify.suspects import DigestTable

POSITION = "0000000000000008.0000000000"


def differences_of(form, rows, *sink):
    """Return the differences between the source's rows and a sink that is at rest."""
    held = {row.key: form.sink_row(row) for row in sink}
    with DigestTable() as digests:
        digests.put(held.values())
        suspected = list(suspects(rows, digests))
    found = (replace(s, after=held.get(s.key), copies=1) for s in suspected)
    each = (differences(form.columns, suspect) for suspect in found)
    return list(form.refined(chain.from_iterable(each)))


def compared(source, sink):
    """Compare one document of the source with the sink's."""
    form = DocumentForm("shop.documents")
    rows = [form.source_rows([["7", source]])]
    return differences_of(
        form, rows, StoredRow("7", parsed(sink), POSITION, is_deleted=False)
    )


@pytest.mark.parametrize(
    ("source", "sink"),
    [
        ('{"a": 1, "b": 2}', '{ "b":2,"a":1 }'),
        ('{"a": 12.50}', '{"a": 1.25e1}'),
        ('{"a": 5}', '{"a": 5.0}'),
        ('{"a": -0.0}', '{"a": 0}'),
        ('{"a": 1e400000}', '{"a": 10e399999}'),
        ('{"a": "\\u00e9"}', '{"a": "é"}'),
        ('{"a": [{"b": null}, []]}', '{"a": [{"b": null}, []]}'),
        (f'{{"a": {2**80}}}', f'{{"a": {2**80}}}'),
    ],
)
def test_equal_documents_are_equal_in_any_spelling(source, sink):
    """
    Order of names, whitespace, escapes and the form of a number do not matter.
    """
    assert [] == compared(source, sink)


@pytest.mark.parametrize(
    ("source", "sink", "found"),
    [
        ('{"a": 1}', '{"a": 2}', ("a", "1", "2")),
        ('{"a": 1}', '{"a": "1"}', ("a", "1", '"1"')),
        ('{"a": 1}', '{"a": true}', ("a", "1", "true")),
        ('{"a": 0}', '{"a": false}', ("a", "0", "false")),
        ('{"a": null}', '{"b": 1, "a": null}', ("b", None, "1")),
        ('{"a": null, "b": 1}', '{"b": 1}', ("a", "null", None)),
        ('{"a": []}', '{"a": {}}', ("a", "[]", "{}")),
        (
            '{"lines": [{"n": 1, "q": 2}, {"n": 2, "q": 2}]}',
            '{"lines": [{"n": 1, "q": 2}, {"n": 2, "q": 3}]}',
            ("lines[1].q", "2", "3"),
        ),
        (
            f'{{"a": {2**80}}}',
            f'{{"a": {2**80 + 1}}}',
            ("a", *map(str, (2**80, 2**80 + 1))),
        ),
        (
            '{"a": 0.10000000000000000001}',
            '{"a": 0.1}',
            ("a", "0.10000000000000000001", "0.1"),
        ),
    ],
)
def test_a_differing_value_is_named_by_its_path(source, sink, found):
    """
    Only differing values are reported, with both values and every digit.
    """
    assert [Difference(DifferenceKind.CHANGED, "7", *found)] == compared(source, sink)


def test_several_differences_of_a_document_are_each_reported():
    """
    An additional line and a different status are two differences.
    """
    found = compared('{"s": "a", "l": [1]}', '{"s": "b", "l": [1, 2]}')

    assert ["l[1]", "s"] == [difference.column for difference in found]


def test_missing_and_extra_documents_are_reported():
    """
    A missing or extra document has no values; without a payload there is no document.
    """
    form = DocumentForm("shop.documents")
    rows = [form.source_rows([["7", '{"a": 1}'], ["9", None]])]
    found = differences_of(
        form, rows, StoredRow("8", {"a": 1}, POSITION, is_deleted=False)
    )

    assert [
        Difference(DifferenceKind.MISSING, "7"),
        Difference(DifferenceKind.EXTRA, "8"),
    ] == found


@pytest.mark.parametrize(
    "payload",
    ["", "paid", "{'a': 1}", "[" * 100_000, "9" * 5_000, "1e99999999999999999999"],
)
def test_a_payload_that_is_not_json_is_reported_with_its_aggregate(payload):
    """
    The error names the view; the sink's document is not reported as wrong.
    """
    form = DocumentForm("shop.documents")
    reason = (
        "shop.documents returns invalid JSON .* aggregate 7: .* cast payload to jsonb"
    )
    with pytest.raises(UnfitViewError, match=reason):
        form.source_rows([["6", "{}"], ["7", payload]])


def test_a_number_has_one_text():
    """Very large and very small numbers are not written out with zeros."""
    texts = [canonical_document(Decimal(text)) for text in ("1e50", "10e49", "2.50")]

    assert ["1E+50", "1E+50", "2.5"] == texts
