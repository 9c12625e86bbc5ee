"""Rules that hold for every service of compose.yaml."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from support import compose_file, dockerfile

Service = dict[str, Any]

MEMORY_MIB = 9_728
# This profile needs memory in addition to the platform's.
MONITORING = "monitoring"
_CONDITIONS = {"service_healthy", "service_completed_successfully"}
_SECRET = re.compile(r"PASSWORD|SECRET|ACCESS_KEY|TOKEN")
_LOGIN = re.compile(r"://[^/@\s:]*:([^@/\s]+)@")


def findings(document: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """Return the violations in a document, each prefixed with its service."""
    services = document["services"]
    found = [
        f"{name}: {text}"
        for name, service in services.items()
        for rule in (_image, _life, _health, _rights, _ports, _needs, _secrets)
        for text in rule(service, environ)
    ]
    found += [
        f"{name}: {text}"
        for name, service in services.items()
        for text in _volumes(service, document["volumes"])
    ]
    ends = {
        name
        for service in services.values()
        for name, need in service.get("depends_on", {}).items()
        if need["condition"] == "service_completed_successfully"
    }
    found += [
        f"{name}: is not restarted, and no service waits until it has ended"
        for name, service in services.items()
        if is_one_shot(service) and name not in ends and not service.get("profiles")
    ]
    used = sum(
        memory_mib(service)
        for service in services.values()
        if not is_one_shot(service) and MONITORING not in service.get("profiles", ())
    )
    if used > MEMORY_MIB:
        found.append(f"all: {used} MiB is more than {MEMORY_MIB}")
    return found


def is_one_shot(service: Service) -> bool:
    """Return whether a service is meant to end."""
    return service.get("restart") == "no"


def memory_mib(service: Service) -> int:
    """Return a service's memory limit in MiB, 0 if it has none."""
    return int(service.get("mem_limit", 0)) // 2**20


def _image(service: Service, _: Mapping[str, str]) -> Iterator[str]:
    if not re.fullmatch(r"[a-z0-9./-]+:(?!latest$)v?\d[\w.-]*", service["image"]):
        yield f"the image {service['image']} has no version"


def _life(service: Service, _: Mapping[str, str]) -> Iterator[str]:
    if not is_one_shot(service) and service.get("restart") != "unless-stopped":
        yield "is not restarted"
    if not memory_mib(service):
        yield "has no memory limit"


def _health(service: Service, _: Mapping[str, str]) -> Iterator[str]:
    own = service.get("healthcheck")
    target = service.get("build", {}).get("target")
    checks = dockerfile.ours()[target].of("HEALTHCHECK") if target else []
    inherited = bool(checks) and checks[-1] != "NONE"
    healthy = bool(own.get("test")) if own else inherited
    if not is_one_shot(service) and not healthy:
        yield "has no health check"


def _rights(service: Service, _: Mapping[str, str]) -> Iterator[str]:
    if "no-new-privileges:true" not in service.get("security_opt", ()):
        yield "may gain privileges"
    if service.get("privileged") or service.get("cap_add"):
        yield "has more privileges than the engine's defaults"
    if "build" in service and service.get("cap_drop") != ["ALL"]:
        yield "keeps capabilities"
    if "build" in service and not service.get("read_only"):
        yield "may write to its root file system"


def _ports(service: Service, environ: Mapping[str, str]) -> Iterator[str]:
    for port in service.get("ports", ()):
        if port.get("host_ip") != environ["BIND_ADDRESS"]:
            yield f"port {port['target']} is reachable from other machines"


def _needs(service: Service, _: Mapping[str, str]) -> Iterator[str]:
    for name, need in service.get("depends_on", {}).items():
        if need["condition"] not in _CONDITIONS:
            yield f"does not wait until {name} is ready"


def _secrets(service: Service, environ: Mapping[str, str]) -> Iterator[str]:
    allowed = {value for name, value in environ.items() if _SECRET.search(name)}
    for name, value in service.get("environment", {}).items():
        if _SECRET.search(name) and value not in allowed:
            yield f"{name} has a value that .env does not set"
    for login in _LOGIN.findall(str(service)):
        if login not in allowed:
            yield "an address contains a password that .env does not set"


def _volumes(service: Service, named: Mapping[str, Any]) -> Iterator[str]:
    for volume in service.get("volumes", ()):
        source = volume["source"]
        if volume["type"] == "volume" and source in named:
            continue
        path = compose_file.FOLDER / source
        folders = (compose_file.FOLDER, compose_file.FOLDER.parent / MONITORING)
        inside = path.is_file() and any(map(path.is_relative_to, folders))
        if volume["type"] != "bind" or not inside or not volume.get("read_only"):
            yield f"{source} is neither a named volume nor a read-only file"
