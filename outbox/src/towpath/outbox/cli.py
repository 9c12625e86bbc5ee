"""``towpath schema freeze | check | catalogue``: release event schemas."""

import importlib
import inspect
import json as json_text
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from towpath.cli.options import JsonOption, read_settings
from towpath.outbox.event import Events
from towpath.schemas.catalogue import EventPlace
from towpath.schemas.catalogue import catalogue as write_catalogue
from towpath.schemas.compatibility import LEVEL, Level
from towpath.schemas.events import EventSchemas
from towpath.schemas.failure import UsageError
from towpath.schemas.released import (
    AVRO,
    LOCK,
    HeldSchema,
    SchemaFinding,
    check_files,
    digest,
    lock_text,
    read_lock,
    registered,
    unreleased,
)
from towpath.schemas.schema_files import SchemaFile, embed, read_files

if TYPE_CHECKING:
    from towpath.schemas.registry import Reference, SchemaRegistry
    from towpath.settings.outbox import Outbox as OutboxSettings

FOLDER: Final = Path("schemas")

FolderArgument = Annotated[
    Path,
    Parameter(
        name="FOLDER", help="The folder of the schemas [schemas].", show_default=False
    ),
]
LevelOption = Annotated[
    Level,
    Parameter(
        name="--compatibility",
        help="The compatibility level, named as in the registry.",
        # The registry writes levels in upper case.
        name_transform=str.upper,
    ),
]


def freeze(
    folder: FolderArgument = FOLDER,
    /,
    *,
    compatibility: LevelOption = LEVEL,
    json: JsonOption = False,
) -> int:
    """
    Freeze the schemas of a folder; exit 1, and freeze none, if the check fails.

    Their digests are added to the folder's released.lock; commit that file.

    Args:
        folder: The folder of the schemas.
        compatibility: The compatibility level.
        json: Print one JSON document.
    """
    files = read_files(folder)
    released = read_lock(folder)
    found = check_files(files, released, compatibility)
    new = [] if found else [file for file in files if file.name not in released]
    if new:
        added = {file.name: digest(file) for file in new}
        _write(folder / LOCK, lock_text({**released, **added}))
    names = [file.name for file in new]
    if json:
        _print_document(folder, files, found, frozen=names)
    else:
        _print_findings(found)
        print(*(f"frozen: {name}" for name in names), sep="\n", end="\n" * bool(names))
        if not found and not names:
            print(f"{folder}: every schema is frozen already")
    return int(bool(found))


def check(
    folder: FolderArgument = FOLDER,
    /,
    *,
    registry: Annotated[
        str | None, Parameter(help="Compare with this schema registry, too.")
    ] = None,
    compatibility: LevelOption = LEVEL,
    json: JsonOption = False,
) -> int:
    """
    Check that no released schema was changed and each version is compatible.

    Each finding is printed with its remedy; exit 1 if there is one.

    Args:
        folder: The folder of the schemas.
        registry: The URL of a schema registry.
        compatibility: The compatibility level.
        json: Print one JSON document.
    """
    files = read_files(folder)
    released = read_lock(folder)
    found = check_files(files, released, compatibility) + unreleased(files, released)
    if registry is not None:
        schemas = EventSchemas.from_files(files).history
        with closing(_client(registry)) as client:
            subjects = dict.fromkeys(schema.subject for schema in schemas)
            held = {subject: _held(client, subject) for subject in subjects}
        found += registered(schemas, held, compatibility)
    if json:
        _print_document(folder, files, found)
    else:
        _print_findings(found)
        if not found:
            print(f"{folder}: {len(files)} schemas, nothing wrong")
    return int(bool(found))


def catalogue(
    folder: FolderArgument = FOLDER,
    /,
    *,
    events: Annotated[
        tuple[str, ...],
        Parameter(
            negative="", help="MODULE:NAME of an application's Events; may be repeated."
        ),
    ] = (),
    title: str = "Events",
    output: Path | None = None,
    config: Annotated[
        Path | None,
        Parameter(help="With --events: configuration of topic names [default names]."),
    ] = None,
) -> int:
    """
    Write a Markdown page with every event type, its fields and versions.

    With --events, schemas and aggregates are those of the applications' Events.

    Args:
        folder: The folder of the schemas; not used with --events.
        events: MODULE:NAME of an Events object, or of a function that returns one.
        title: The heading of the page.
        output: The file to write; standard output by default.
        config: Configuration file, for the names of topics; only with --events.
    """
    places: dict[str, EventPlace] = {}
    schemas = EventSchemas() if events else EventSchemas.from_folder(folder)
    for name in events:
        found = _events(name)
        schemas |= found.schemas
        outbox = _outbox_settings(config)
        places |= {
            event_type: EventPlace(aggregate, _topic(outbox, aggregate))
            for event_type, aggregate in found.aggregates.items()
        }
    page = write_catalogue(schemas, places, title)
    if output is None:
        print(page, end="")
    else:
        _write(output, page)
    return 0


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"{file}: {error.strerror or 'cannot be written'}"
        raise UsageError(message) from error


def _events(reference: str) -> Events:
    """Import the application's events from MODULE:NAME."""
    module, _, name = reference.partition(":")
    if module.startswith("."):
        message = f"--events {reference} must give the module's full name"
        raise UsageError(message)
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        message = f"--events {reference} cannot be imported: {error}"
        raise UsageError(message) from error
    if callable(found) and not isinstance(found, type):
        found = _called(found, reference)
    if not isinstance(found, Events):
        message = f"--events {reference} is not an Events object of towpath.outbox"
        raise UsageError(message)
    return found


def _called(function: Callable[[], object], reference: str) -> object:
    """Call the application's function that returns its events."""
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        message = f"--events {reference} is a function that needs arguments"
        raise UsageError(message) from error
    except ValueError:
        # A compiled function may have no signature: only the call shows whether it
        # works.
        try:
            return function()
        except TypeError as error:
            message = (
                f"--events {reference} cannot be called without arguments: {error}"
            )
            raise UsageError(message) from error
    return function()


def _outbox_settings(config: Path | None) -> "OutboxSettings":
    """Return the outbox settings of a configuration; the defaults without one."""
    from towpath.settings.outbox import (  # noqa: PLC0415 - keeps freeze and check light
        Outbox as OutboxSettings,
    )

    if config is None:
        return OutboxSettings()
    return read_settings(config).relay.outbox


def _topic(outbox: "OutboxSettings", aggregate_type: str) -> str:
    """Return the topic of an aggregate type; empty if another column chooses it."""
    is_by_type = outbox.route_by in {"", outbox.columns.aggregate_type}
    return outbox.topic_of(aggregate_type) if is_by_type else ""


def _client(url: str) -> "SchemaRegistry":
    try:
        from towpath.schemas.registry import (  # noqa: PLC0415 - in an extra
            SchemaRegistry,
        )
    except ImportError as error:
        message = "--registry needs requests: pip install 'towpath-outbox[cli]'"
        raise UsageError(message) from error
    return SchemaRegistry(url)


def _held(registry: "SchemaRegistry", subject: str) -> list[HeldSchema]:
    """Read every version of a subject, with the types that it references embedded."""
    found = []
    for version in registry.versions(subject):
        schema = registry.schema(subject, version)
        text = schema.text
        if schema.kind == AVRO and schema.references:
            shared = list(_shared(registry, schema.references))
            whole = embed(f"{subject}:{version}", json_text.loads(text), shared)
            text = json_text.dumps(whole)
        found.append(HeldSchema(version, schema.kind, text))
    return found


def _shared(
    registry: "SchemaRegistry", references: "Iterable[Reference]"
) -> Iterator[dict[str, Any]]:
    """Yield the referenced types, each one after the types that it references."""
    for reference in references:
        schema = registry.schema(*reference)
        yield from _shared(registry, schema.references)
        yield json_text.loads(schema.text)


def _print_findings(found: Sequence[SchemaFinding]) -> None:
    for finding in found:
        print(f"{finding.rule}: {finding.sentence}\n  cure: {finding.cure}")


def _print_document(
    folder: Path,
    files: Sequence[SchemaFile],
    found: Sequence[SchemaFinding],
    **more: object,
) -> None:
    document = {
        "folder": str(folder),
        "schemas": [file.name for file in files],
        **more,
        "findings": [finding._asdict() for finding in found],
    }
    print(json_text.dumps(document, indent=1, ensure_ascii=False))
