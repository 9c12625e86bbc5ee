"""The compiled check agrees with fastavro's check on payloads of every kind."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import fastavro
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from towpath.services.orders.events import shop_schemas

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
# The values at which types differ: neighbors of each bound, and lookalikes of each
# type.
_EDGES = (
    *(None, True, False, 0, 1.0, "", "0", [], {}, [{}], ["null"]),
    *(2**31 - 1, 2**31, -(2**31), -(2**31) - 1),
    *(2**63 - 1, 2**63, -(2**63), -(2**63) - 1),
)

# Examples are small enough to read without shrinking, and each is checked in hundreds
# of variants.
_WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)


def payload_of(schema: Any) -> st.SearchStrategy[Any]:
    """Draw payloads that follow the schema."""
    if isinstance(schema, list):
        return st.one_of([payload_of(branch) for branch in schema])
    if isinstance(schema, Mapping):
        if schema["type"] == "record":
            return st.fixed_dictionaries(
                {f["name"]: payload_of(f["type"]) for f in schema["fields"]}
            )
        if schema["type"] == "array":
            return st.lists(payload_of(schema["items"]), max_size=3)
        return payload_of(schema["type"])
    return {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "string": _TEXT,
    }[schema]


def variants(payload: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the payload unchanged, and with each single field changed."""
    yield payload
    for record in [payload, *payload.get("lines", [])]:
        whole = dict(record)
        for field in (*whole, "unknown"):
            for edge in _EDGES:
                record[field] = edge
                yield payload
            del record[field]
            yield payload
            record.clear()
            record.update(whole)


def is_valid(name: str, payload: dict[str, Any]) -> bool:
    """Return fastavro's verdict, with defaults filled in and extra fields rejected."""
    schema = shop_schemas().newest[name].parsed
    whole = copy.deepcopy(payload)
    if not _filled(schema, whole):
        return False
    return fastavro.validate(whole, dict(schema), raise_errors=False, strict=True)


def _filled(schema: Mapping[str, Any], payload: Any) -> bool:
    if not isinstance(payload, dict):
        return False
    for field in schema["fields"]:
        if "default" in field:
            payload.setdefault(field["name"], field["default"])
        items = field["type"].get("items") if isinstance(field["type"], dict) else None
        elements = payload.get(field["name"]) if items else None
        if isinstance(elements, list) and not all(_filled(items, e) for e in elements):
            return False
    return payload.keys() <= {f["name"] for f in schema["fields"]}


@pytest.mark.parametrize("name", sorted(shop_schemas().newest))
@settings(max_examples=10, phases=_WITHOUT_SHRINKING)
@given(data=st.data())
def test_the_payload_check_accepts_exactly_the_schemas_values(
    name: str, data: st.DataObject
):
    """
    A payload passes if and only if fastavro's strict check accepts it.
    """
    schema = shop_schemas().newest[name]
    payload = data.draw(payload_of(schema.parsed))

    differing = [
        copy.deepcopy(changed)
        for changed in variants(payload)
        if is_valid(name, changed) != (schema.check(changed) is None)
    ]

    assert differing == []
