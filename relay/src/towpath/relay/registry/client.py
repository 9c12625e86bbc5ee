"""
Ids of schemas, from a registry with Confluent's interface.

A schema is looked up first and registered only if the subject does not have it, so that
a replay of old shapes and a read-only registry work too. Operators set the
compatibility levels; the relay changes none.
"""

from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import requests
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema

from towpath.relay.errors import (
    RegistryRefusedError,
    RegistryUnavailableError,
    SchemaRefusedError,
)

# An answer takes milliseconds, and the loop waits for it: a registry that hangs must
# fail well before Postgres ends the silent connection after a minute.
REQUEST_TIMEOUT_S: Final = 5.0

_INCOMPATIBLE: Final = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)
_PASSING: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
_NO_REGISTRY: Final = "the server at [registry] url is not a schema registry"
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"


class SchemaIds:
    """Registers schemas and returns their ids; they are cached."""

    def __init__(self, url: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._session = requests.Session()
        self._known: dict[tuple[str, str], int] = {}

    def __call__(self, subject: str, schema: str) -> int:
        """
        Return the id of a schema; register it if the subject does not have it.

        Raises:
            RegistryUnavailableError: The registry cannot answer now.
            RegistryRefusedError: The server refuses the relay, or is not a registry.
            SchemaRefusedError: The registry refuses the schema.
        """
        known = self._known.get((subject, schema))
        if known is None:
            known = self._find(subject, schema)
            if known is None:
                known = self._register(subject, schema)
            self._known[subject, schema] = known
        return known

    def ping(self) -> None:
        """
        Make sure that a schema registry answers.

        Raises:
            RegistryUnavailableError: The registry cannot answer now.
            RegistryRefusedError: The server refuses the relay, or is not a registry.
        """
        answer = self._answer("GET", "/schemas/types")
        _check(answer)
        try:
            types = answer.json()
        except requests.JSONDecodeError:
            types = None
        if not isinstance(types, list):
            raise RegistryRefusedError(_NO_REGISTRY)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _find(self, subject: str, schema: str) -> int | None:
        answer = self._post(f"/subjects/{quote(subject, safe='')}", schema)
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return None
        # Some registries refuse to look up a schema that they would not register.
        if answer.status_code in _INCOMPATIBLE:
            return None
        return _id(answer)

    def _register(self, subject: str, schema: str) -> int:
        answer = self._post(f"/subjects/{quote(subject, safe='')}/versions", schema)
        if answer.status_code in _INCOMPATIBLE:
            reason = (
                f"the schema registry refuses a schema for the subject {subject}: "
                f"{_reason(answer)}"
            )
            raise SchemaRefusedError(reason)
        return _id(answer)

    def _post(self, path: str, schema: str) -> requests.Response:
        content = {"schemaType": "AVRO", "schema": schema}
        return self._answer("POST", path, content)

    def _answer(
        self, method: str, path: str, content: dict[str, str] | None = None
    ) -> requests.Response:
        try:
            return self._session.request(
                method,
                self._url + path,
                json=content,
                headers={"Content-Type": _MEDIA_TYPE, "Accept": _MEDIA_TYPE},
                timeout=self._timeout_s,
            )
        except (InvalidSchema, InvalidURL, MissingSchema) as e:
            reason = "[registry] url is not a valid URL"
            raise RegistryRefusedError(reason) from e
        except requests.RequestException as e:
            # Not the error's text, which may hold the address with its password.
            reason = f"the schema registry cannot be reached: {type(e).__name__}"
            raise RegistryUnavailableError(reason) from e


def _check(answer: requests.Response) -> None:
    """
    Raise the error that a failed answer stands for.

    Raises:
        RegistryUnavailableError: The registry cannot answer now.
        RegistryRefusedError: The registry refuses the login or a right.
    """
    status = answer.status_code
    if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        reason = f"the schema registry cannot answer now: {_reason(answer)}"
        raise RegistryUnavailableError(reason)
    if not answer.ok:
        reason = f"the schema registry refuses the relay: {_reason(answer)}"
        raise RegistryRefusedError(reason)


def _id(answer: requests.Response) -> int:
    _check(answer)
    schema_id = _document(answer).get("id")
    if not isinstance(schema_id, int):
        raise RegistryRefusedError(_NO_REGISTRY)
    return schema_id


def _reason(answer: requests.Response) -> str:
    """Return the status and the registry's message."""
    message = _document(answer).get("message") or answer.reason
    return f"{answer.status_code} {message}"


def _document(answer: requests.Response) -> dict[str, Any]:
    try:
        document = answer.json()
    except requests.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}
