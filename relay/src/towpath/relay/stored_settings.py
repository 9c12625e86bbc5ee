"""
The settings that decide what is published where, kept beside the marks.

After a crash the relay streams again what Kafka may have. Which record a change gives,
under which number and in which partition, must then be decided as before, or what Kafka
has would not be recognised: so it runs with the settings of then until the confirmed
position has passed every mark, and with those of the file from there on.

Another slot is another lineage, so it is always the file's. What only forms values
(masks, and their salts) is left out: it decides nothing here, and a salt does not
belong beside what it hides. So are the aggregate views: they form READ events alone.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from towpath.relay.errors import StateLostError
from towpath.settings import Relay, Settings, Source

_SOURCE: Final = frozenset({"publication", "outbox_publication", "tables"})
_RELAY: Final = frozenset({"preset", "outbox", "rows", "transactions", "messages"})
_LEFT_OUT: Final = MappingProxyType({"rows": "mask", "outbox": "view"})


def deciding(settings: Settings) -> dict[str, Any]:
    """Return what decides ordinals, routes, keys and partitions, as a document."""
    source = settings.database.model_dump(mode="json", include=set(_SOURCE))
    relay = settings.relay.model_dump(mode="json", include=set(_RELAY))
    for section, key in _LEFT_OUT.items():
        relay[section].pop(key, None)
    return {"source": source, "relay": relay}


def as_before(settings: Settings, stored: Mapping[str, Any]) -> Settings:
    """
    Return the settings with what was stored in place of what decides.

    Raises:
        StateLostError: What was stored is no configuration any more.
    """
    source = settings.database.model_dump() | dict(stored["source"])
    relay = settings.relay.model_dump()
    for name, value in stored["relay"].items():
        relay[name] = relay[name] | value if isinstance(value, dict) else value
    try:
        return settings.model_copy(
            update={
                "source": (Source.model_validate(source),),
                "relay": Relay.model_validate(relay),
            }
        )
    except ValueError as error:
        reason = f"the stored settings cannot be read: {error}"
        raise StateLostError(reason) from error


def differences(settings: Settings, stored: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the settings of the file that differ from those that were stored."""
    now = deciding(settings)
    return tuple(
        f"{section}.{name}"
        for section, names in now.items()
        for name, value in names.items()
        if stored.get(section, {}).get(name) != value
    )
