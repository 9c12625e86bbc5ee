"""Copies of values with changed fields, for dataclasses and named tuples alike."""

import dataclasses


def replace(value, /, **changes):
    """Return a copy with changed fields, as Python 3.13's ``copy.replace`` does."""
    if isinstance(value, tuple):
        return value._replace(**changes)
    return dataclasses.replace(value, **changes)
