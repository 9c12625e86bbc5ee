"""A Postgres 15 for one test, and one that accepts only TLS connections."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from support.secure_kafka import write_certificates
from support.waiting import until
from towpath.deploy.local import postgres
from towpath.deploy.local.stack import Addresses, Stack

_TLS_ONLY = """\
local all all trust
hostssl all all 127.0.0.1/32 trust
"""


@contextmanager
def serving() -> Iterator[Addresses]:
    """Provide the addresses of a server."""
    environ = os.environ  # noqa: TID251 - a root
    with served(postgres.postgres_15_programs(print, environ)) as addresses:
        yield addresses


@contextmanager
def served(programs: Path) -> Iterator[Addresses]:
    """Provide the addresses of a server of a different release."""
    folder = Path(tempfile.mkdtemp(prefix="towpath-test-15-"))
    (folder / "owner").write_text(str(os.getpid()), encoding="utf-8")
    stack = Stack(folder, programs)
    try:
        yield stack.up(["postgres"])
    finally:
        stack.purge()
        shutil.rmtree(folder)


class SecurePostgres:
    """
    A server that has a certificate and refuses a client without TLS.

    Attributes:
        authority: The file of the certificate authority.
    """

    def __init__(self, addresses: Addresses, folder: Path) -> None:
        self._addresses = addresses
        write_certificates(folder)
        self.authority = folder / "ca.pem"
        with psycopg.connect(self.plain("postgres"), autocommit=True) as owner:
            self._use(folder, Path(owner.execute("show data_directory").fetchone()[0]))
            owner.execute("alter system set ssl = on")
            owner.execute("select pg_reload_conf()")
        until(self._is_secure, "connections without TLS are refused")

    def plain(self, database: str) -> str:
        """Return the address of a database, without TLS."""
        return self._addresses.dsn(database)

    def dsn(self, database: str, authority: Path | None = None) -> str:
        """Return a database's address with full verification of the certificate."""
        root = authority or self.authority
        return f"{self.plain(database)}?sslmode=verify-full&sslrootcert={root}"

    def _use(self, folder: Path, data: Path) -> None:
        owner = data.stat()
        for source, name in (
            ("broker.pem", "server.crt"),
            ("broker.key", "server.key"),
        ):
            shutil.copyfile(folder / source, data / name)
            (data / name).chmod(0o600)
            os.chown(data / name, owner.st_uid, owner.st_gid)
        (data / "pg_hba.conf").write_text(_TLS_ONLY, encoding="utf-8")

    def _is_secure(self) -> bool:
        try:
            psycopg.connect(self.plain("postgres"), sslmode="disable").close()
        except psycopg.OperationalError:
            psycopg.connect(self.dsn("postgres")).close()
            return True
        return False
