"""The canonical form of an aggregate's id: the text that the server would write."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towpath.relay.encode.aggregates import canonical_id
from towpath.settings.outbox import IdForm

ID = b"10711fa5-00aa-4000-8000-0000000000ff"


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (IdForm.TEXT, b" 007 ", b" 007 "),
        (IdForm.INTEGER, b"7", b"7"),
        (IdForm.INTEGER, b"+007", b"7"),
        (IdForm.INTEGER, b" -07 ", b"-7"),
        (IdForm.INTEGER, b"-0", b"0"),
        (IdForm.INTEGER, b"000", b"0"),
        (IdForm.INTEGER, b"9" * 5000, b"9" * 5000),
        (IdForm.INTEGER, b"7.0", None),
        (IdForm.INTEGER, b"", None),
        (IdForm.INTEGER, "\u0667".encode(), None),
        (IdForm.UUID, ID, ID),
        (IdForm.UUID, ID.upper(), ID),
        (IdForm.UUID, b"{" + ID.replace(b"-", b"") + b"}", ID),
        (IdForm.UUID, b"1071-1fa500aa400080000000000000ff", ID),
        (IdForm.UUID, b"10711fa5-00aa-4000-8000-0000000000f", None),
        (IdForm.UUID, b"107-11fa500aa400080000000000000ff", None),
        (IdForm.UUID, b"order-1", None),
    ],
)
def test_an_aggregate_id_is_spelled_as_the_server_writes_it(form, text, expected):
    """
    An id that does not fit the form has no canonical spelling.
    """
    assert expected == canonical_id(form)(text)


@given(st.integers(), st.uuids())
def test_an_aggregate_id_in_the_servers_spelling_is_unchanged(
    number: int, name: uuid.UUID
):
    """
    Every integer and UUID is unchanged if it is spelled as the server writes it.
    """
    assert str(number).encode() == canonical_id(IdForm.INTEGER)(str(number).encode())
    assert str(name).encode() == canonical_id(IdForm.UUID)(str(name).encode())
