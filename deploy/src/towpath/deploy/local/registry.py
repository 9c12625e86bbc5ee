"""The schema registry: Apicurio with Confluent's interface, kept in one file."""

from pathlib import Path
from typing import Final

from towpath.deploy import java
from towpath.deploy.jars import store
from towpath.deploy.local.part import Part, StateFolder
from towpath.deploy.local.ports import LOOPBACK, get_json

_HEAP_MB: Final = 256


def part(state: StateFolder, port: int, management_port: int) -> Part:
    """Describe the registry part."""
    folder = state.data("registry")
    settings = {
        "quarkus.http.host": LOOPBACK,
        "quarkus.http.port": str(port),
        # Its default is 9000 on every address, where two stacks would meet.
        "quarkus.management.host": LOOPBACK,
        "quarkus.management.port": str(management_port),
        "apicurio.storage.kind": "sql",
        "apicurio.storage.sql.kind": "h2",
        # Without the setting a schema that was answered for is in the file half a
        # second later, and a killed registry may give its id to another.
        "apicurio.datasource.url": f"jdbc:h2:file:{folder / 'schemas'};WRITE_DELAY=0",
    }
    return Part(
        name="registry",
        command=(
            str(java.home() / "bin" / "java"),
            *java.server(_HEAP_MB, store.folder() / "registry.jsa"),
            *(f"-D{name}={value}" for name, value in settings.items()),
            *("-jar", str(store.folder() / "registry" / "quarkus-run.jar")),
        ),
        folder=folder,
        env={"LC_ALL": "C.UTF-8"},
        port=port,
        prepare=lambda: _prepare(folder),
        probe=lambda: ask(port),
    )


def _prepare(folder: Path) -> None:
    store.of("registry")
    folder.mkdir(parents=True, exist_ok=True)


def url(port: int) -> str:
    """Return the address that clients of Confluent's registry take."""
    return f"http://{LOOPBACK}:{port}/apis/ccompat/v7"


def ask(port: int) -> None:
    """
    Ask for the subjects, which the storage has to answer.

    Raises:
        NotReadyError: No answer yet.
    """
    get_json(f"{url(port)}/subjects")
