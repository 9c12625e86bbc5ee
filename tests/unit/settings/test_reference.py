"""The reference of all keys matches the model that reads them."""

import enum
import json
import re
import typing
from pathlib import Path

from towpath.settings import Settings
from towpath.settings.outbox import DEBEZIUM_OUTBOX
from towpath.settings.rows import DEBEZIUM_ROWS
from towpath.settings.section import Key, keys

REFERENCE = Path(__file__).parents[3] / "docs/configuration.md"
_SECTION = re.compile(r"## (?:`\[+([a-z.]+)\]+`|The file)")
_ROW = re.compile(r"\| `([a-z_0-9]+)` \| (.*?) \| (.*?) \| (.+) \|")
_PRESET_ROW = re.compile(r"\| `([a-z_.]+)` \| `(.*)` \|")


def documented() -> dict[str, tuple[str, str]]:
    """Read the values and the default of each key from the reference's tables."""
    found, section = {}, ""
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        if heading := _SECTION.fullmatch(line):
            section = heading[1] or ""
        elif row := _ROW.fullmatch(line):
            name = f"{section}.{row[1]}" if section else row[1]
            assert name not in found, name
            found[name] = (row[2], row[3])
    return found


def default_of(key: Key) -> str:
    """Format a key's default as the reference does."""
    if key.field.is_required():
        return "required"
    value = key.field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, Path):
        value = str(value)
    is_whole = isinstance(value, float) and value.is_integer()
    return f"`{json.dumps(int(value) if is_whole else value)}`"


def choices_of(key: Key) -> list[str]:
    """List the words that a key accepts."""
    annotation = key.field.annotation
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return [one.value for one in annotation]
    is_choice = typing.get_origin(annotation) is typing.Literal
    choices = typing.get_args(annotation) if is_choice else ()
    return [word for word in choices if isinstance(word, str)]


def test_the_reference_has_every_key_and_no_other():
    """
    A change to the keys requires a change to the reference.
    """
    assert sorted(key.name for key in keys(Settings)) == sorted(documented())


def test_the_reference_has_the_defaults_of_the_model():
    """
    Each key has the model's default in the reference.
    """
    found = {name: default for name, (_, default) in documented().items()}
    expected = {key.name: default_of(key) for key in keys(Settings)}

    assert expected == found


def test_the_reference_names_every_choice():
    """
    A key that accepts one of several words lists all of them.
    """
    found = documented()
    missing = [
        (key.name, word)
        for key in keys(Settings)
        for word in choices_of(key)
        if f"`{word}`" not in found[key.name][0]
    ]

    assert missing == []


def test_the_reference_lists_the_changes_of_the_preset():
    """
    Each default that the preset changes is in the last table.
    """
    expected = {
        f"relay.outbox.columns.{name}": value
        for name, value in DEBEZIUM_OUTBOX["columns"].items()
    }
    expected["relay.outbox.placements"] = DEBEZIUM_OUTBOX["placements"]
    expected |= {f"relay.rows.{name}": value for name, value in DEBEZIUM_ROWS.items()}
    text = REFERENCE.read_text(encoding="utf-8").partition("What `preset")[2]
    found = {row[1]: json.loads(row[2]) for row in _PRESET_ROW.finditer(text)}

    assert expected == found
