"""
Masking of secrets wherever a configuration is shown.

A value is a secret because of its key's name (password, token, salt, account key), or
contains one: the password in an address, in either of the two forms of libpq. A
transform's ``salt`` names a secret and is not one itself.
"""

import re
from collections.abc import Mapping
from typing import Final

MASKED: Final = "********"
_NAMES: Final = re.compile(
    r"password|passphrase|secret|salt|token|credential|\.pem$|oauthbearer\.config"
    r"|(?:account|api)[._-]?key|connection[._-]string|authorization"
)
# Section and key of those keys that have such a name but do not hold a secret.
_REFERENCES: Final = frozenset({("transforms", "salt")})
# Greedy on purpose: a stray @ in a password masks too much, never too little.
_IN_ADDRESS: Final = re.compile(r"(://[^:/@\s]*:).*@", re.DOTALL)
_IN_OPTIONS: Final = re.compile(
    r"""(password\s*=\s*)('(?:[^'\\]|\\.)*'?|"(?:[^"\\]|\\.)*"?|[^\s&]+)""",
    re.IGNORECASE,
)


def masked(value: object, name: str = "") -> object:
    """
    Return a copy of a value, section or whole document without its secrets.

    Args:
        value: The value to show.
        name: Its key.
    """
    if isinstance(value, Mapping):
        # All values of a section with such a name are secrets.
        is_secret = _NAMES.search(name.lower()) is not None
        return {
            key: each
            if (name, key) in _REFERENCES
            else masked(each, name if is_secret else str(key))
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(each, name) for each in value]
    # An empty string shows that there is no secret; true and false are not secrets.
    if value is None or isinstance(value, bool) or value == "":
        return value
    if _NAMES.search(name.lower()):
        return MASKED
    if not isinstance(value, str):
        return value
    text = _IN_ADDRESS.sub(rf"\1{MASKED}@", value)
    return _IN_OPTIONS.sub(rf"\1{MASKED}", text)
