"""Event schemas in a real schema registry: registered once, and compatible."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from support.registry import registry_client
from towpath.schemas.clock import SystemClock
from towpath.schemas.events import EventSchema
from towpath.schemas.failure import RegistryUnavailableError
from towpath.services.orders.events import shop_schemas
from towpath.services.registry import RegistryConflictError, register_event_schemas

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

AGE = {"name": "age", "type": "int"}


def register(url: str, *schemas: EventSchema, timeout_s: float = 30.0) -> None:
    """Register schemas as a service does at startup."""
    register_event_schemas(url, schemas, clock=SystemClock(), timeout_s=timeout_s)


def renamed(name: str, version: int = 1, field: dict | None = None) -> EventSchema:
    """Return a version of an event type that no other test uses."""
    schema = shop_schemas().newest["CustomerRegistered"]
    document = json.loads(schema.text) | {"name": name, "namespace": "test"}
    if field:
        document["fields"].append(field)
    return replace(
        schema,
        name=name,
        subject=f"test.{name}",
        version=version,
        text=json.dumps(document),
    )


def test_every_event_schema_is_registered_after_two_services_start(stack):
    """
    Two simultaneous starts and a restart register each version once.
    """
    with ThreadPoolExecutor(2) as pool:
        urls = [stack.registry_url] * 2
        list(pool.map(lambda url: register(url, *shop_schemas().history), urls))
    register(stack.registry_url, *shop_schemas().history)
    with closing(registry_client(stack.registry_url)) as client:
        registered = {
            s.subject: (
                client.get_versions(s.subject),
                client.get_compatibility(s.subject),
                json.loads(client.get_latest_version(s.subject).schema.schema_str),
            )
            for s in shop_schemas().history
        }

    expected = {
        s.subject: ([1], "BACKWARD_TRANSITIVE", json.loads(s.text))
        for s in shop_schemas().history
    }

    assert expected == registered


def test_services_can_register_the_same_schemas_simultaneously(stack, unique: str):
    """
    Eight services register the same new schemas at the same time, and all succeed.
    """
    schemas = [renamed(unique), renamed(unique, 2, AGE | {"default": 0})]
    gate = threading.Barrier(8)

    def start(_: int) -> None:
        gate.wait(timeout=30)
        register(stack.registry_url, *schemas)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(start, range(8)))
    with closing(registry_client(stack.registry_url)) as client:
        versions = client.get_versions(schemas[0].subject)

    assert versions == [1, 2]


def test_an_incompatible_version_is_refused(stack, unique: str):
    """
    The second version of a subject is checked against the first.
    """
    first = renamed(unique)
    second = renamed(unique, 2, AGE)

    with pytest.raises(RegistryConflictError, match="refuses a schema"):
        register(stack.registry_url, first, second)


def test_a_compatible_version_is_registered(stack, unique: str):
    """
    The subject then has both versions.
    """
    second = renamed(unique, 2, AGE | {"default": 0})
    register(stack.registry_url, renamed(unique), second)
    with closing(registry_client(stack.registry_url)) as client:
        versions = client.get_versions(second.subject)

    assert versions == [1, 2]


def test_a_different_version_number_in_the_registry_is_reported(stack, unique: str):
    """
    Otherwise, a header that names version 7 would refer to a missing version.
    """
    with pytest.raises(RegistryConflictError, match="as version 1"):
        register(stack.registry_url, renamed(unique, 7))


def test_an_unreachable_registry_is_retried_until_the_deadline():
    """
    Then the start fails with an error that names the registry.
    """
    with pytest.raises(RegistryUnavailableError, match="cannot be reached"):
        register("http://127.0.0.1:1", *shop_schemas().history, timeout_s=0.5)
