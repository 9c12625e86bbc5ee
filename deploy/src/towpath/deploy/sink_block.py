"""
The file without one sink: its block is cut out of the text, all else stays as written.

Whether the cut was right is not guessed: what the new text says must be what the old
one said, less that sink. Pure.
"""

import re
import tomllib
from typing import Final

from towpath.schemas.failure import UsageError

_HEADER: Final = re.compile(r"\s*\[\[?\s*([^\[\]#]+?)\s*\]\]?\s*(?:#.*)?$")
_SINK: Final = "sink"


def without_sink(text: str, name: str) -> str:
    """
    Return the file's text without a sink's block.

    Raises:
        UsageError: The block cannot be told from the rest: it must be cut by hand.
    """
    document = tomllib.loads(text)
    sinks = document[_SINK]
    place = next(at for at, sink in enumerate(sinks) if sink["name"] == name)
    lines = text.splitlines(keepends=True)
    kept = "".join(
        line
        for line, block in zip(lines, _blocks(lines), strict=True)
        if block != place or not line.strip()
    )
    document[_SINK] = [sink for sink in sinks if sink["name"] != name]
    if not document[_SINK]:
        del document[_SINK]
    if not _says(kept, document):
        message = f"the block of {name} cannot be told from the rest of the file"
        raise UsageError(message)
    return re.sub(r"\n{3,}", "\n\n", kept)


def _says(text: str, document: object) -> bool:
    try:
        return tomllib.loads(text) == document
    except tomllib.TOMLDecodeError:
        return False


def _blocks(lines: list[str]) -> list[int | None]:
    """Tell of each line which sink's block it stands in, with the comments above it."""
    found: list[int | None] = []
    block: int | None = None
    count = 0
    for at, line in enumerate(lines):
        header = _HEADER.match(line)
        found.append(block)
        if header is None:
            continue
        if header[1].split(".")[0].strip() != _SINK:
            block = None
        elif header[1].strip() == _SINK:
            block, count = count, count + 1
        above = at
        while above and lines[above - 1].lstrip().startswith("#"):
            above -= 1
        found[above:] = [block] * (at + 1 - above)
    return found
