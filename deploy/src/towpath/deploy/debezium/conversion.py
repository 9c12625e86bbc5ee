"""
The conversion of a connector: its properties one by one, each with a rule.

The document is checked after each property. If the configuration rejects a property's
keys, they are left out, and the property is reported as not supported, with the reason.
The resulting file can therefore always be loaded.
"""

import copy
import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import tomlkit

from towpath.deploy.debezium.connector import Connector
from towpath.deploy.debezium.properties import PROPERTIES
from towpath.deploy.debezium.router import ROUTER, transform_option
from towpath.deploy.debezium.rows import MASK
from towpath.deploy.debezium.rules import (
    Finding,
    Keys,
    Outcome,
    Property,
    PropertyStatus,
    PropertyValue,
    assignments,
    not_supported,
    pattern_of,
    same,
    sentence,
)
from towpath.deploy.debezium.running import PROVIDER
from towpath.schemas.failure import ConfigurationError
from towpath.settings import Settings, read
from towpath.settings.secrets import MASKED, masked
from towpath.settings.section import arranged

_NO_DSN: Final = "postgresql://"
_BROKERS: Final = "127.0.0.1:9092"
_REGISTRY: Final = "http://127.0.0.1:8081"
_SALT: Final = re.compile(r"(?<=\.with\.salt\.).+")
_SECRET: Final = re.compile(
    r"(?i)(password|passphrase|secret|jaas|token|keystore\.key|auth\.user\.info)"
)
_TRANSFORM: Final = "transforms."
# Kafka Connect's pattern for a provider's value; ${name} is a group in a replacement.
_PROVIDED: Final = re.compile(r"\$\{[^}]*:[^}]*\}")


class Conversion(NamedTuple):
    """
    The result of a conversion.

    Attributes:
        document: The file, ready to be written.
        findings: One per property, in the connector's order, then implied defaults.
        to_do: Corrections and steps before the first start.
    """

    document: Mapping[str, Any]
    findings: tuple[Finding, ...]
    to_do: tuple[str, ...]


class _Rule(NamedTuple):
    """The rule of a property, and its input."""

    known: Property
    given: PropertyValue


def convert(connector: Connector) -> Conversion:
    """Convert a connector, property by property."""
    draft = _Draft(connector)
    found = {name: draft.convert(name, value) for name, value in _ordered(connector)}
    findings = [found[name] for name in connector.properties if name in found]
    findings += [draft.default(name, known) for name, known in _implied(connector)]
    document = arranged(draft.document, Settings)
    return Conversion(document, tuple(findings), tuple(_to_do(document)))


class _Draft:
    """The document so far, which is always a valid configuration."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._seen: dict[str, str] = {}
        self.document: dict[str, Any] = {
            "version": 1,
            "source": [{"dsn": _NO_DSN}],
            "kafka": {"bootstrap_servers": connector.brokers or _BROKERS},
            "registry": {"url": connector.registry or _REGISTRY},
            "relay": {"preset": "debezium"},
        }
        self._defaults = _checked(self.document)

    def convert(self, name: str, value: str) -> Finding:
        """Convert one property that is set."""
        found = _find(name, value, self._connector)
        if found is None:
            return _finding(name, value, Outcome(PropertyStatus.UNKNOWN, _guess(name)))
        first = self._seen.setdefault(_identity(found), name)
        if first != name:
            winner = shown_name(first)
            outcome = not_supported(f"{winner} sets the same option, and is used")
        else:
            outcome = self._merged(self._outcome(found))
        return _finding(name, value, outcome, is_secret=found.known.is_secret)

    def default(self, name: str, known: Property) -> Finding:
        """Convert Debezium's default for a property that is not set."""
        value = known.implied or ""
        outcome = self._merged(self._outcome(_Rule(known, PropertyValue(name, value))))
        return _finding(name, value, outcome)._replace(is_implied=True)

    def _outcome(self, found: _Rule) -> Outcome:
        try:
            outcome = found.known.rule(found.given, self._connector)
        except ValueError as error:
            return not_supported(str(error))
        keys = outcome.keys.items()
        provided = [
            ".".join(path) for path, value in keys if _PROVIDED.search(str(value))
        ]
        if provided:
            return not_supported(f"{PROVIDER} value: write it to {', '.join(provided)}")
        return outcome

    def _merged(self, outcome: Outcome) -> Outcome:
        """Merge the keys into the document, if it can still be loaded with them."""
        if not outcome.keys:
            return outcome
        if self._are_defaults(outcome.keys):
            if outcome.status is PropertyStatus.TAKEN:
                return same(assignments(outcome.keys))
            return outcome._replace(keys={})
        trial = copy.deepcopy(self.document)
        for path, value in outcome.keys.items():
            _merge(trial, path, value)
        try:
            _checked(trial)
        except ConfigurationError as refused:
            mistakes = "; ".join(refused.mistakes)
            return not_supported(mistakes.replace("source.0.", "source."))
        self.document = trial
        return outcome

    def _are_defaults(self, keys: Keys) -> bool:
        return all(
            _is_default(self._defaults, self.document, path, value)
            for path, value in keys.items()
        )


def _checked(document: Mapping[str, Any]) -> Settings:
    return read(document, {}, Path("/"))


def _merge(document: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    here: Any = document
    for step in path[:-1]:
        here = here[step][0] if step == "source" else here.setdefault(step, {})
    before = here.get(path[-1])
    # Several properties may each add a rule to [[relay.rows.mask]].
    if path == MASK and isinstance(before, list) and isinstance(value, list):
        value = [*before, *value]
    here[path[-1]] = value


def _is_default(
    defaults: Settings,
    document: Mapping[str, Any],
    path: tuple[str, ...],
    value: object,
) -> bool:
    """Return whether a value is the default of a key."""
    here: object = defaults.model_dump(mode="json")
    written: object = document
    for step in path:
        here = here.get(step) if isinstance(here, dict) else None
        written = written.get(step) if isinstance(written, dict) else None
        if step == "source":
            here = here[0] if isinstance(here, list) else None
            written = written[0] if isinstance(written, list) else None
    return written in (None, value) and here == value


def _ordered(connector: Connector) -> list[tuple[str, str]]:
    """Return the properties in the order of their dependencies."""
    ranks = {name: number for number, name in enumerate(_names())}

    def rank(item: tuple[str, str]) -> tuple[int, bool, bool]:
        found = _find(*item, connector)
        # A login has no effect until the security protocol is known.
        is_protocol = item[0].endswith("security.protocol")
        if found is None:
            return len(ranks), False, not is_protocol
        # The current name of a property takes precedence over an older one.
        is_older = item[0] in found.known.older
        return ranks.get(found.known.name, 0), is_older, not is_protocol

    return sorted(connector.properties.items(), key=rank)


def _names() -> Iterator[str]:
    return (known.name for known in (*PROPERTIES, *ROUTER))


def _find(name: str, value: str, connector: Connector) -> _Rule | None:
    """Return the rule with a property's name, else one whose wildcards match it."""
    transform = next(
        (t for t in connector.transforms if name.startswith(f"{_TRANSFORM}{t}.")), None
    )
    if transform is not None:
        return _find_option(name, value, transform, connector)
    for known in PROPERTIES:
        if name == known.name or name in known.older:
            return _Rule(known, PropertyValue(name, value))
    for known in PROPERTIES:
        match = pattern_of(known.name).fullmatch(name) if "*" in known.name else None
        if match is not None:
            return _Rule(known, PropertyValue(name, value, match.groups()))
    return None


def _find_option(
    name: str, value: str, transform: str, connector: Connector
) -> _Rule | None:
    option = name.removeprefix(f"{_TRANSFORM}{transform}.")
    given = PropertyValue(name, value, (transform, option))
    for known in ROUTER:
        is_routed = transform == connector.router or option == "type"
        if option == known.name and is_routed:
            return _Rule(known, given)
    if transform == connector.router:
        return None
    return _Rule(Property(f"{_TRANSFORM}*", transform_option), given)


def _identity(found: _Rule) -> str:
    """Return the current name of a property, whether its old or new name is used."""
    is_listed = found.given.name in (found.known.name, *found.known.older)
    return found.known.name if is_listed else found.given.name


def _implied(connector: Connector) -> Iterator[tuple[str, Property]]:
    """Yield properties that are not set, but have a default that must be written."""
    for known in PROPERTIES:
        names = (known.name, *known.older)
        is_message = known.name == "message.prefix.include.list"
        if is_message and "message.prefix.exclude.list" in connector.properties:
            continue
        if known.implied is not None and not connector.properties.keys() & set(names):
            yield known.name, known
    for known in ROUTER:
        name = f"{_TRANSFORM}{connector.router}.{known.name}"
        is_missing = known.implied is not None and name not in connector.properties
        if connector.router is not None and is_missing:
            yield name, known


def _finding(
    name: str, value: str, outcome: Outcome, *, is_secret: bool = False
) -> Finding:
    hides = bool(value) and bool(_SECRET.search(name))
    hides = hides or (is_secret and "password" in value.lower())
    shown = MASKED if hides else str(masked(value))
    text = sentence(outcome)
    return Finding(shown_name(name), shown, outcome.status, text, is_implied=False)


def shown_name(name: str) -> str:
    """Mask the salt of a hash, which is part of the property's name in Debezium."""
    return _SALT.sub(MASKED, name)


def _guess(name: str) -> str:
    known = [name for name in _names() if "*" not in name]
    known += [older for each in PROPERTIES for older in each.older]
    option = name.split(".", 2)[-1] if name.startswith(_TRANSFORM) else name
    close = difflib.get_close_matches(option, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else " of Debezium's connector"


def _to_do(document: Mapping[str, Any]) -> Iterator[str]:
    source, relay = document["source"][0], document["relay"]
    if source["dsn"] == _NO_DSN:
        yield "source.dsn is empty: write the address of the database."
    if document["kafka"]["bootstrap_servers"] == _BROKERS:
        yield (
            "kafka.bootstrap_servers is a guess: Kafka Connect's worker has the right "
            "value; give it with --kafka."
        )
    if "tables" not in source and "table" not in relay.get("outbox", {}):
        yield "source.tables is empty: list the tables to capture."
    yield (
        "The connector owns its slot and its publication while it exists. To lose "
        "nothing, write other names to source.slot and source.publication, run towpath "
        "relay init while the connector still runs, stop the connector, and start the "
        "relay: the changes that both publish are in the topics twice. Then drop the "
        "slot and the publication of the connector."
    )


def toml_text(document: Mapping[str, object], comment: str = "") -> str:
    """Return a document as TOML, below a comment with a ``#`` before each line."""
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    return head + tomlkit.dumps(document)
