"""
The syntax of values: placements, topic templates, regular expressions and paths.

A placement is ``column:header|partition|envelope`` with an optional ``:alias``. A topic
template is a legal topic name that may contain ``{aggregate_type}``. Regular
expressions are Python's and must match the whole text; signals accept a subset. A field
of a document is named by its path: ``address.city``, ``lines[].quantity``. The
placeholder of an unchanged value is text, or bytes in hex: ``hex:ff00``. Each parser
raises ``ValueError`` with one line that names the mistake.
"""

import enum
import hashlib
import re
import warnings
from collections.abc import Callable, Collection
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator
from pydantic_core import SchemaError, SchemaValidator, core_schema

from towpath.schemas.topics import is_legal_topic

ROUTED_VALUE: Final = "{aggregate_type}"
_PARTS: Final = (2, 3)
_HEX: Final = "hex:"
_FIELD_PATH: Final = re.compile(r"(?:[^.\[\]]+(?:\[\])?\.)*[^.\[\]]+")
# The beginning of a named group, or something that may look like one: an escape or a
# character set.
_JAVA_GROUP: Final = re.compile(
    r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\])|\(\?<(?=[A-Za-z])", re.DOTALL
)


class PlacedIn(enum.StrEnum):
    """The place of an additional column in a record."""

    HEADER = "header"
    PARTITION = "partition"
    ENVELOPE = "envelope"


class Placement(NamedTuple):
    """One additional column of an outbox row; ``name`` is its alias or the column."""

    column: str
    place: PlacedIn
    name: str


def parse_placement(text: str) -> Placement:
    """
    Parse one placement.

    Raises:
        ValueError: The text is not a placement.
    """
    parts = [part.strip() for part in text.split(":")]
    if len(parts) not in _PARTS or not all(parts):
        message = f"{text!r} is not column:header, column:partition or column:envelope"
        raise ValueError(message)
    column, place, *alias = parts
    known = [one.value for one in PlacedIn]
    if place not in known:
        message = f"{text!r}: {place!r} is not one of {', '.join(map(repr, known))}"
        raise ValueError(message)
    return Placement(column, PlacedIn(place), alias[0] if alias else column)


def python_pattern(text: str) -> str:
    """Rewrite Java's named groups, ``(?<name>``, as Python's ``(?P<name>``."""
    return _JAVA_GROUP.sub(lambda found: found[1] or "(?P<", text)


def compiled(text: str) -> re.Pattern[str]:
    """
    Compile a regular expression; Java's ``(?<name>...)`` is accepted too.

    Raises:
        ValueError: The text is not a regular expression.
    """
    try:
        return re.compile(python_pattern(text))
    except (re.error, OverflowError, RecursionError) as error:
        message = f"not a regular expression: {error}: {text!r}"
        raise ValueError(message) from error


def linear_matcher(text: str) -> Callable[[str], bool]:
    """
    Return a function that returns whether an expression matches a whole string.

    The time grows in proportion to the string. A backtracking search, like Python's
    own, can take hours, so expressions from outside the configuration are matched here.

    Raises:
        ValueError: The text is not a regular expression that can be matched in linear
            time, or has a part that other dialects read as a set operation.
    """
    try:
        with warnings.catch_warnings():
            # Python warns about text that it, but not this matcher, reads literally.
            warnings.simplefilter("error", FutureWarning)
            re.compile(text)
        schema = core_schema.str_schema(
            pattern=rf"\A(?:{text})\z", regex_engine="rust-regex"
        )
        return SchemaValidator(schema).isinstance_python
    except SchemaError as error:
        reason = str(error).strip().splitlines()[-1].strip().removeprefix("error: ")
        message = f"cannot be compiled for matching in linear time: {reason}"
        raise ValueError(message) from error
    except FutureWarning as error:
        message = f"ambiguous regular expression: {error}"
        raise ValueError(message) from error
    except (re.error, OverflowError, RecursionError) as error:
        message = f"not a regular expression: {error}"
        raise ValueError(message) from error


def placeholder_bytes(text: str) -> bytes:
    """
    Return a placeholder's bytes, which may be written in hex.

    Raises:
        ValueError: The text after ``hex:`` is not in hex.
    """
    if not text.startswith(_HEX):
        return text.encode()
    try:
        return bytes.fromhex(text.removeprefix(_HEX))
    except ValueError as error:
        message = f"{text!r}: must have an even number of hex digits after {_HEX!r}"
        raise ValueError(message) from error


def parsed_by(parse: Callable[[str], object], *, optional: bool) -> AfterValidator:
    """Return a validator that calls ``parse``; optional text may be empty."""

    def check(text: str) -> str:
        if text or not optional:
            parse(text)
        return text

    return AfterValidator(check)


def not_one_of(names: Collection[str], owner: str) -> AfterValidator:
    """Return a validator that refuses names that ``owner`` sets itself."""

    def check(name: str) -> str:
        if name in names:
            message = f"{name!r} is set by the {owner} itself: leave it out"
            raise ValueError(message)
        return name

    return AfterValidator(check)


def _check_template(text: str) -> str:
    filled = text.replace(ROUTED_VALUE, "a")
    if not is_legal_topic(filled):
        message = (
            f"{text!r} is not a topic that Kafka accepts: use 1 to 249 letters, "
            "digits, dots, dashes and underscores (but not just . or ..), and "
            f"{ROUTED_VALUE} for the aggregate type"
        )
        raise ValueError(message)
    return text


# Settings of the client that the relay sets itself.
_OWN_OPTIONS: Final = frozenset(
    {
        "bootstrap.servers",
        "metadata.broker.list",
        "acks",
        "request.required.acks",
        "enable.idempotence",
        "enable.gapless.guarantee",
        "retries",
        "message.send.max.retries",
        "delivery.report.only.error",
        "transactional.id",
        "partitioner",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.max.bytes",
        "batch.size",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "fetch.wait.max.ms",
        "session.timeout.ms",
        "group.id",
        "auto.offset.reset",
        "enable.auto.commit",
        "enable.partition.eof",
        "isolation.level",
    }
)


def _check_hash(text: str) -> str:
    name = text.lower().replace("-", "").replace("_", "")
    known = {one.replace("_", ""): one for one in sorted(hashlib.algorithms_guaranteed)}
    if name not in known or name.startswith("shake"):
        message = f"{text!r} is not a known hash, such as 'SHA-256'"
        raise ValueError(message)
    return text


def _check_path(text: str) -> str:
    if _FIELD_PATH.fullmatch(text) is None:
        message = f"{text!r} is not a path into a document, such as 'lines[].quantity'"
        raise ValueError(message)
    return text


Placeholder = Annotated[str, parsed_by(placeholder_bytes, optional=False)]
PlacementText = Annotated[str, parsed_by(parse_placement, optional=False)]
Pattern = Annotated[str, parsed_by(compiled, optional=True)]
TopicTemplate = Annotated[str, AfterValidator(_check_template)]
HashName = Annotated[str, AfterValidator(_check_hash)]
ClientOption = Annotated[str, not_one_of(_OWN_OPTIONS, "relay")]
FieldPath = Annotated[str, AfterValidator(_check_path)]
