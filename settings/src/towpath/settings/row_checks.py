"""
What sinks can read of row changes: plain JSON, and values as ``[relay.rows]`` has them.

Sinks know a value by its column's type alone, so a numeric that comes as bytes, or a
time that comes as a number, would be set aside record by record, or kept as something
else than the source has. Other readers may have any form, from a relay whose file
declares no sinks of tables.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from towpath.settings.model import Settings
from towpath.settings.routes import RouteKind
from towpath.settings.rows import (
    DEBEZIUM_ROWS,
    Binaries,
    Decimals,
    HstoreForm,
    Intervals,
    RecordFormat,
    Times,
    UnknownTypes,
)

# A placeholder stands where ``unchanged`` says so, hence is no value; what is left out
# or renamed is announced so. Plain JSON has base64 for bytes too.
_READABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "format": (RecordFormat.JSON,),
    "decimals": (Decimals.STRING,),
    "times": (Times.ISO,),
    "intervals": (Intervals.STRING,),
    "binaries": (Binaries.BYTES, Binaries.BASE64),
    "hstore": (HstoreForm.JSON,),
    "unknown_types": (UnknownTypes.TEXT, UnknownTypes.OMIT),
}


def rows_are_readable(settings: Settings) -> Iterator[str]:
    """List the forms of row values that the file's sinks of tables cannot read."""
    readers = [
        sink.name
        for sink in settings.sink
        if any(route.kind is RouteKind.TABLE for route in sink.route)
    ]
    if not readers:
        return
    for key, readable in _READABLE.items():
        form = getattr(settings.relay.rows, key)
        if form not in readable:
            cure = " or ".join(f'"{each}"' for each in readable)
            yield (
                f"relay.rows.{key}: sinks of tables ({', '.join(readers)}) cannot read "
                f'"{form}"{_origin(settings, key, form)}: set it to {cure}'
            )


def _origin(settings: Settings, key: str, form: str) -> str:
    """Say where a form comes from that the file may not name."""
    preset = settings.relay.preset
    is_preset = preset == "debezium" and DEBEZIUM_ROWS.get(key) == form
    return f', which relay.preset = "{preset}" gives' if is_preset else ""
