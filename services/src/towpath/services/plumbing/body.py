"""
Reading a request: bytes in, a checked value out, and every mistake told at once.

The body is JSON by its media type or it is refused (415). Bytes that are not JSON in
UTF-8 are a 400; JSON that says something not allowed is a 422 that lists all of it.
"""

from typing import Final, TypeVar

from flask import Request
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from werkzeug.exceptions import RequestEntityTooLarge, UnsupportedMediaType

from towpath.services.plumbing.problems import (
    FieldError,
    InvalidInputError,
    UnreadableError,
)

# Far above the largest order (100 lines are under 20 kB), and small enough that a few
# hundred at once cannot hurt.
MAX_BODY_BYTES: Final = 256 * 1024

AnyInput = TypeVar("AnyInput", bound="Input")


class Input(BaseModel):
    """What a command takes from outside: strict, frozen, without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def without_nul(text: str) -> str:
    """Refuse a NUL character: Postgres has no way to keep one in text."""
    if "\0" in text:
        message = "must not hold a NUL character"
        raise ValueError(message)
    return text


def read_body(
    request: Request, model: type[AnyInput], *, optional: bool = False
) -> AnyInput:
    """
    Read the request's body as the model.

    Args:
        request: The request; its body is read once and kept.
        model: What the body must be.
        optional: Take an empty body for an empty object.

    Raises:
        RequestEntityTooLarge: The body is larger than the application takes.
        UnsupportedMediaType: The body does not say that it is JSON.
        UnreadableError: The body is not JSON in UTF-8.
        InvalidInputError: Some of it is not allowed.
    """
    data = _whole_body(request)
    if not data and optional:
        data = b"{}"
    elif request.mimetype != "application/json":
        message = "Send the body as application/json."
        raise UnsupportedMediaType(message)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise _refusal(details) from error


def _whole_body(request: Request) -> bytes:
    data = request.get_data()
    # A body without a length is cut at the limit, silently: at the limit is too large.
    limit = request.max_content_length
    if limit is not None and len(data) >= limit:
        raise RequestEntityTooLarge
    return data


def _refusal(details: list[ErrorDetails]) -> UnreadableError | InvalidInputError:
    if details[0]["type"] == "json_invalid":
        return UnreadableError(f"The body is not JSON: {details[0]['ctx']['error']}.")
    errors = [FieldError(_field(d["loc"]), _reason(d)) for d in details]
    return InvalidInputError("Some fields are not allowed as they are.", errors)


def _field(loc: tuple[int | str, ...]) -> str:
    steps = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in loc)
    return steps.removeprefix(".") or "body"


def _reason(detail: ErrorDetails) -> str:
    return detail["msg"].removeprefix("Value error, ")
