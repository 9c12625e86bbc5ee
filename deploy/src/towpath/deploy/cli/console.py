"""``towpath console``: a web page and a JSON API for the platform."""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, NamedTuple

from cyclopts import Parameter
from cyclopts.validators import Number

from towpath.cli.options import (
    ConfigOption,
    StateOption,
    config_file,
    read_settings,
    reading,
)
from towpath.deploy.cli.stack import read_document
from towpath.deploy.local.ports import is_loopback
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.settings.logs import configure_logs

if TYPE_CHECKING:
    from flask import Flask

# Pages wait for servers, not for Python; few people view them at the same time.
_THREADS: Final = 8
# A shorter token could be guessed.
_MIN_TOKEN_CHARACTERS: Final = 16
_TOKEN: Final = "TOWPATH_CONSOLE_TOKEN"  # noqa: S105 - the name of a variable


class ConsoleTokenError(UsageError):
    """The console's token is missing or too short."""

    remedy: ClassVar[str] = (
        "Write at least 16 random characters to a file, and pass it with --token-file."
    )


class ConsoleFiles(NamedTuple):
    """
    The files of a console, as the command line names them.

    Attributes:
        config: The configuration.
        state: The state folder.
        demo: The state folder of a demo, if the console belongs to one.
    """

    config: Path | None
    state: Path | None
    demo: Path | None = None


def console(
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=Number(gte=1, lte=65_535))] = 8070,
    token_file: Path | None = None,
    config: ConfigOption = None,
    state: StateOption = None,
    demo: Path | None = None,
) -> int:
    """
    Serve a web page that shows and controls the platform, until Ctrl-C.

    It shows source, relay, topics and sinks with live rates and lag; the slot's log as
    a plot; snapshots; dead letters; records of topics; the path of one row or
    aggregate; and the doctor's findings. With a token it also carries out the actions
    of the commands. The same is available as JSON, described by /openapi.json. Actions
    need the token; on any address except loopback, reading needs it, too.

    Args:
        host: The address to listen on; any address except loopback needs a token.
        port: The port to listen on.
        token_file: A file with the login token [TOWPATH_CONSOLE_TOKEN].
        config: Configuration file.
        state: State folder.
        demo: State folder of a demo; a page can then kill its parts.
    """
    from towpath.services.plumbing.server import Listen, serve  # noqa: PLC0415 - keeps --help fast

    configure_logs()
    token = checked_token(_read_token(token_file), host)
    read_settings(config)
    # In a bare IPv6 address the server would take the last group for the port.
    address = f"[{host.strip('[]')}]" if ":" in host else host
    print(f"console: http://{address}:{port} (Ctrl-C stops it)", flush=True)
    files = ConsoleFiles(config, state, demo)
    listen = Listen(address, port, _THREADS, drain_s=0)
    serve(partial(make_app, files, token, host), listen)
    return 0


def make_app(files: ConsoleFiles, token: str, host: str) -> "Flask":
    """
    Create the console's application.

    Args:
        files: The console's configuration and state folders.
        token: The login token; if it is empty, nobody can log in.
        host: The address on which the console listens.
    """
    from towpath.deploy.console import ConfigurationFile, PlatformState  # noqa: PLC0415 - keeps --help fast
    from towpath.deploy.console.pages import create_app  # noqa: PLC0415
    from towpath.deploy.console.security import Access, AuditLog  # noqa: PLC0415
    from towpath.deploy.local.part import StateFolder  # noqa: PLC0415

    clock = SystemClock()
    folder = read_settings(files.config).state_folder
    audit = AuditLog(folder / "console" / "audit.jsonl", clock)
    access = Access(token, audit, clock, is_local=is_loopback(host))
    platform = PlatformState(
        ConfigurationFile(config_file(files.config), os.environ),  # noqa: TID251 - a root
        partial(read_document, files.config, files.state, clock),
        clock,
    )
    demo = None if files.demo is None else StateFolder(files.demo)
    return create_app(platform, access, demo)


def _read_token(file: Path | None) -> str:
    """
    Return the token from its file or the environment; an empty string if there is none.

    Raises:
        UsageError: The file cannot be read, or is not text.
    """
    if file is None:
        return os.environ.get(_TOKEN, "")  # noqa: TID251 - a root
    with reading(file):
        return file.read_text(encoding="utf-8")


def checked_token(token: str, host: str) -> str:
    """
    Return the token, without surrounding white space.

    Raises:
        ConsoleTokenError: The token is too short, or missing although other machines
            can connect.
    """
    token = token.strip()
    if token and len(token) < _MIN_TOKEN_CHARACTERS:
        message = f"the token has {len(token)} characters"
        raise ConsoleTokenError(message)
    if not token and not is_loopback(host):
        message = f"other machines can connect to {host}, and there is no token"
        raise ConsoleTokenError(message)
    return token
