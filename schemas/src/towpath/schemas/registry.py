"""
Schemas in a registry with Confluent's API: their ids, and a subject's versions.

A schema is looked up first and registered only if the subject does not have it, so a
replay of old shapes works, and so does a read-only registry. Operators set the
compatibility levels; nothing here changes one.

``requests`` comes with the package's extra ``registry``.
"""

import ssl
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import requests

from towpath.schemas.failure import (
    RegistryRefusedError,
    RegistryUnavailableError,
    SchemaRefusedError,
)

# A response takes milliseconds, and the loop waits for it: a registry that hangs must
# fail well before Postgres ends the silent connection after a minute.
REQUEST_TIMEOUT_S: Final = 5.0

_INCOMPATIBLE: Final = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)
_TRANSIENT: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
# OpenSSL's codes for a certificate that is not yet, or no longer, valid: time, or a
# renewal of the registry's certificate, fixes that.
_OUT_OF_DATE: Final = (9, 10)
_NO_REGISTRY: Final = "the server at the address is not a schema registry"
_AVRO: Final = "AVRO"
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"


class Reference(NamedTuple):
    """A named type that a registered schema takes from a version of a subject."""

    subject: str
    version: int


class RegisteredSchema(NamedTuple):
    """One version of a subject: its text, its kind, and the schemas that it names."""

    text: str
    kind: str
    references: tuple[Reference, ...]


class SchemaRegistry:
    """Registers schemas, returns and caches their ids, and reads subjects."""

    def __init__(self, url: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._session = requests.Session()
        self._known: dict[tuple[str, str], int] = {}

    def __call__(self, subject: str, schema: str) -> int:
        """
        Return the id of a schema; register it if the subject does not have it.

        Raises:
            RegistryUnavailableError: The registry cannot respond now.
            RegistryRefusedError: The login, address or certificate file is wrong.
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
        Make sure that a schema registry responds.

        Raises:
            RegistryUnavailableError: The registry cannot respond now.
            RegistryRefusedError: The login, address or certificate file is wrong.
        """
        response = self._request("GET", "/schemas/types")
        _check(response)
        if not isinstance(_content(response), list):
            raise RegistryRefusedError(_NO_REGISTRY)

    def versions(self, subject: str) -> tuple[int, ...]:
        """
        Return a subject's version numbers, in order; none if the subject is unknown.

        Raises:
            RegistryUnavailableError: The registry cannot respond now.
            RegistryRefusedError: The login, address or certificate file is wrong.
        """
        response = self._request("GET", f"/subjects/{quote(subject, safe='')}/versions")
        is_missing = response.status_code == HTTPStatus.NOT_FOUND
        if is_missing and "error_code" in _json(response):
            return ()
        _check(response)
        numbers = _content(response)
        if not isinstance(numbers, list) or not all(map(_is_number, numbers)):
            raise RegistryRefusedError(_NO_REGISTRY)
        return tuple(sorted(numbers))

    def schema(self, subject: str, version: int) -> RegisteredSchema:
        """
        Return one version of a subject.

        Raises:
            RegistryUnavailableError: The registry cannot respond now.
            RegistryRefusedError: The login, address or certificate file is wrong, or
                the subject has no such version.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
        response = self._request("GET", path)
        _check(response)
        document = _json(response)
        text, references = document.get("schema"), document.get("references") or []
        # The registry leaves the kind out of Avro schemas.
        kind = document.get("schemaType") or _AVRO
        if not (isinstance(text, str) and isinstance(kind, str)):
            raise RegistryRefusedError(_NO_REGISTRY)
        if not isinstance(references, list):
            raise RegistryRefusedError(_NO_REGISTRY)
        return RegisteredSchema(text, kind, tuple(map(_reference, references)))

    def mode(self) -> str:
        """
        Return the registry's mode: READWRITE, READONLY or IMPORT; empty if it has none.

        Raises:
            RegistryUnavailableError: The registry cannot respond now.
            RegistryRefusedError: The address or certificate file is wrong.
        """
        response = self._request("GET", "/mode")
        _check_available(response)
        return str(_json(response).get("mode", ""))

    def compatibility(self, subject: str) -> str:
        """
        Return the compatibility level of a subject, its own or the registry's.

        The level is empty if the registry shows none.

        Raises:
            RegistryUnavailableError: The registry cannot respond now.
            RegistryRefusedError: The address or certificate file is wrong.
        """
        path = f"/config/{quote(subject, safe='')}"
        for each in (path, "/config"):
            response = self._request("GET", each)
            _check_available(response)
            found = _json(response)
            if level := found.get("compatibilityLevel") or found.get("compatibility"):
                return str(level)
        return ""

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _find(self, subject: str, schema: str) -> int | None:
        response = self._post(f"/subjects/{quote(subject, safe='')}", schema)
        if response.status_code == HTTPStatus.NOT_FOUND:
            return None
        # Some registries refuse to look up a schema that they would not register.
        if response.status_code in _INCOMPATIBLE:
            return None
        return _id(response)

    def _register(self, subject: str, schema: str) -> int:
        response = self._post(f"/subjects/{quote(subject, safe='')}/versions", schema)
        if response.status_code in _INCOMPATIBLE:
            reason = (
                f"the schema registry refuses a schema for the subject {subject}: "
                f"{_reason(response)}"
            )
            raise SchemaRefusedError(reason)
        return _id(response)

    def _post(self, path: str, schema: str) -> requests.Response:
        content = {"schemaType": _AVRO, "schema": schema}
        return self._request("POST", path, content)

    def _request(
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
        # An address that cannot be used causes a ValueError, whatever the reason: its
        # scheme, a part of its host that is too long, a login that is not Latin-1.
        except ValueError as e:
            reason = "the address of the schema registry is not a valid URL"
            raise RegistryRefusedError(reason) from e
        except requests.RequestException as e:
            raise _failure(e) from e
        except OSError as e:
            # The path of the certificates, in REQUESTS_CA_BUNDLE, does not exist.
            reason = f"the certificates for the schema registry cannot be read: {e}"
            raise RegistryRefusedError(reason) from e


def _failure(
    error: requests.RequestException,
) -> RegistryUnavailableError | RegistryRefusedError:
    """Return the error of a request that got no response; some allow a retry."""
    distrusted = _distrusted(error)
    if distrusted is None:
        # Not the error's text, which may hold the address with its password.
        reason = f"the schema registry cannot be reached: {type(error).__name__}"
        return RegistryUnavailableError(reason)
    reason = (
        "the certificate of the schema registry is not trusted: "
        f"{distrusted.verify_message}"
    )
    if distrusted.verify_code in _OUT_OF_DATE:
        return RegistryUnavailableError(reason)
    return RegistryRefusedError(
        f"{reason}; if its authority is unknown here, REQUESTS_CA_BUNDLE must name a "
        "file with the authority's certificate"
    )


def _distrusted(
    error: requests.RequestException,
) -> ssl.SSLCertVerificationError | None:
    """Return the error of a certificate that is not trusted; None for any other."""
    found: object = error
    while isinstance(found, Exception):
        if isinstance(found, ssl.SSLCertVerificationError):
            return found
        # An error of requests or urllib3 holds the error that it replaces, as its
        # reason or its first argument.
        found = getattr(found, "reason", None) or next(iter(found.args), None)
    return None


def _check(response: requests.Response) -> None:
    """
    Raise an error if the response reports a failure.

    Raises:
        RegistryUnavailableError: The registry cannot respond now.
        RegistryRefusedError: The registry refuses the request.
    """
    _check_available(response)
    if not response.ok:
        reason = f"the schema registry refuses the request: {_reason(response)}"
        raise RegistryRefusedError(reason)


def _check_available(response: requests.Response) -> None:
    status = response.status_code
    if status in _TRANSIENT or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        reason = f"the schema registry cannot respond now: {_reason(response)}"
        raise RegistryUnavailableError(reason)


def _id(response: requests.Response) -> int:
    _check(response)
    schema_id = _json(response).get("id")
    if not isinstance(schema_id, int):
        raise RegistryRefusedError(_NO_REGISTRY)
    return schema_id


def _is_number(found: object) -> bool:
    return isinstance(found, int)


def _reference(found: object) -> Reference:
    match found:
        case {"subject": str(subject), "version": int(version)}:
            return Reference(subject, version)
        case _:
            raise RegistryRefusedError(_NO_REGISTRY)


def _reason(response: requests.Response) -> str:
    """Return the status and the registry's message."""
    message = _json(response).get("message") or response.reason
    return f"{response.status_code} {message}"


def _json(response: requests.Response) -> dict[str, Any]:
    """Return the JSON object of a response; empty if it has none."""
    document = _content(response)
    return document if isinstance(document, dict) else {}


def _content(response: requests.Response) -> object:
    try:
        return response.json()
    except requests.JSONDecodeError:
        return None
