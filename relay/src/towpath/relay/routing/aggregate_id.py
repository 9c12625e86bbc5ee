"""
An aggregate's id in the form that its view declares: one spelling, that of Postgres.

``text`` stands as it is. ``integer`` is decimal, without a plus and without zeros in
front. ``uuid`` is lower case with dashes. What is spelt otherwise is brought to that;
what is no id of the form at all has none.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from towpath.settings.outbox import IdForm

_INTEGER: Final = re.compile(rb"([+-]?)0*([0-9]+)")
# As Postgres reads it: a dash may stand after every four digits, braces around all.
_UUID: Final = re.compile(rb"(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}")

# Returns the id as the server would write it; None: it is none of the form.
Canonical = Callable[[bytes], bytes | None]


def canonical_of(form: IdForm) -> Canonical:
    """Return what spells ids of a form."""
    return _FORMS[form]


def _text(text: bytes) -> bytes | None:
    return text


def _integer(text: bytes) -> bytes | None:
    found = _INTEGER.fullmatch(text.strip())
    if found is None:
        return None
    sign, digits = found.groups()
    return b"-" + digits if sign == b"-" and digits != b"0" else digits


def _uuid(text: bytes) -> bytes | None:
    inner = text[1:-1] if text[:1] == b"{" and text[-1:] == b"}" else text
    if _UUID.fullmatch(inner) is None:
        return None
    digits = inner.replace(b"-", b"").lower()
    parts = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
    return b"-".join(parts)


_FORMS: Final[Mapping[IdForm, Canonical]] = MappingProxyType(
    {IdForm.TEXT: _text, IdForm.INTEGER: _integer, IdForm.UUID: _uuid}
)
