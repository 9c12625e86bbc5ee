"""A bulk response is parsed item by item; the items were recorded."""

import pytest

from towpath.sinks.targets.search.write import ItemOutcome, ItemVerdict, outcomes

CREATED = {"index": {"status": 201}}
UPDATED = {"index": {"status": 200}}
CONFLICT = {
    "index": {
        "status": 409,
        "error": {
            "type": "version_conflict_engine_exception",
            "reason": "[7]: version conflict, current version [24576] is higher than "
            "the one provided [20480]",
        },
    }
}
REJECTED = {
    "index": {
        "status": 429,
        "error": {
            "type": "rejected_execution_exception",
            "reason": "rejected execution of primary operation",
        },
    }
}
UNPARSED = {
    "index": {
        "status": 400,
        "error": {
            "type": "mapper_parsing_exception",
            "reason": "failed to parse field [active] of type [boolean] in document "
            "with id '7'. Preview of field's value: 'a secret'",
        },
    }
}
STRICT = {
    "index": {
        "status": 400,
        "error": {
            "type": "strict_dynamic_mapping_exception",
            "reason": "mapping set to strict, dynamic introduction of [rogue] within "
            "[_doc] is not allowed",
        },
    }
}
BLOCKED = {
    "index": {
        "status": 429,
        "error": {
            "type": "cluster_block_exception",
            "reason": "index [orders-1] blocked by: [TOO_MANY_REQUESTS/12/disk usage "
            "exceeded flood-stage watermark, index has read-only-allow-delete block];",
        },
    }
}
READ_ONLY = {
    "index": {
        "status": 403,
        "error": {
            "type": "cluster_block_exception",
            "reason": "index [orders-1] blocked by: [FORBIDDEN/8/index write (api)];",
        },
    }
}
CLOSED = {
    "index": {
        "status": 400,
        "error": {"type": "index_closed_exception", "reason": "closed"},
    }
}
NO_PERMISSION = {
    "index": {
        "status": 403,
        "error": {
            "type": "security_exception",
            "reason": "no permissions for [indices:data/write/index]",
        },
    }
}
MISSING = {
    "index": {
        "status": 404,
        "error": {
            "type": "index_not_found_exception",
            "reason": "no such index [orders] and [require_alias] request flag is "
            "[true] and [orders] is not an alias",
        },
    }
}


def test_a_mixed_bulk_response_is_read_item_by_item():
    """
    A response with status 200 may contain any mixture of outcomes, in request order.
    """
    items = [CREATED, CONFLICT, REJECTED, UNPARSED, UPDATED, MISSING]
    verdicts = [o.verdict for o in outcomes({"items": items}, 6)]

    expected = [
        *(ItemVerdict.WRITTEN, ItemVerdict.STALE, ItemVerdict.RETRY),
        *(ItemVerdict.REFUSED, ItemVerdict.WRITTEN, ItemVerdict.GONE),
    ]

    assert expected == verdicts


@pytest.mark.parametrize(
    ("item", "verdict"),
    [
        (BLOCKED, ItemVerdict.BLOCKED),
        (READ_ONLY, ItemVerdict.BLOCKED),
        (CLOSED, ItemVerdict.BLOCKED),
        (NO_PERMISSION, ItemVerdict.FORBIDDEN),
    ],
)
def test_a_read_only_index_refuses_no_document(item, verdict):
    """
    A full disk, a block or a missing permission is not the document's fault.
    """
    (outcome,) = outcomes({"items": [item]}, 1)

    assert verdict is outcome.verdict


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_failure_of_the_index_is_retried(status: int):
    """
    Neither a full queue nor a server's own failure is a fault of the document.
    """
    (outcome,) = outcomes({"items": [{"index": {"status": status}}]}, 1)

    assert ItemVerdict.RETRY is outcome.verdict


def test_a_bulk_reason_does_not_quote_the_document():
    """
    Reasons go to the log, which must contain neither keys nor values.
    """
    reason = (
        "mapper_parsing_exception: failed to parse field [active] of type [boolean]"
    )

    assert [ItemOutcome(ItemVerdict.REFUSED, reason)] == outcomes(
        {"items": [UNPARSED]}, 1
    )


def test_an_unknown_field_is_named():
    """
    The reason contains the name of the column that the index does not have.
    """
    (outcome,) = outcomes({"items": [STRICT]}, 1)

    assert "[rogue]" in outcome.reason
