"""How large a sample is: so many rows, or a percentage of them."""

from typing import Final

from towpath.schemas.failure import UsageError

_WHOLE_PERCENT: Final = 100


def sample_size(text: str) -> float | None:
    """
    Read ``1000`` or ``5%``; below one it is a part of the rows, none means all.

    Raises:
        UsageError: It is neither, or nothing.
    """
    if not text:
        return None
    number, percent, rest = text.partition("%")
    try:
        size = float(number) / _WHOLE_PERCENT if percent else int(number)
    except ValueError:
        size = 0
    if rest or size <= 0 or (percent and size > 1):
        message = f"a sample is a number of rows or a percentage, not {text!r}"
        raise UsageError(message)
    # All of them is no sample: then rows that only the sink has are found too.
    return None if percent and size == 1 else size
