"""A Postgres server for one test, with settings or data that would disturb others."""

import dataclasses
import shutil
import struct
import subprocess
from pathlib import Path

import psycopg

from support.waiting import until
from towpath.deploy.local import lifecycle, ports, postgres
from towpath.deploy.local.part import StateFolder

_SEGMENT_BYTES = 1024**3
# The prepare time, in the header of a prepared transaction's file.
_PREPARED_AT = struct.Struct("<q")
_PREPARED_AT_OFFSET = 16
_CHECKSUM = struct.Struct("<I")


class OwnPostgres:
    """A server that is started with settings that override those of the stack."""

    def __init__(self, folder: Path, database: str) -> None:
        """
        Describe a server; nothing is started.

        Args:
            folder: The folder of its state.
            database: The database that ``dsn`` names.
        """
        self.dsn = ""
        self._state = StateFolder(folder)
        self._state.create()
        self._database = database
        self._port = ports.any_free()

    def start(self, **settings: str) -> str:
        """Start the server, and return the address of its database."""
        part = postgres.part(self._state, self._port)
        flags = (
            text
            for name, value in settings.items()
            for text in ("-c", f"{name}={value}")
        )
        part = dataclasses.replace(part, command=(*part.command, *flags))
        lifecycle.bring_up(part, self._state)
        postgres.create_databases(self._port, (self._database,))
        self.dsn = postgres.dsn(self._port, self._database)
        return self.dsn

    def stop(self) -> None:
        """Stop the server, after a last checkpoint."""
        part = postgres.part(self._state, self._port)
        lifecycle.take_down(part, self._state)

    def advance_transactions(self, until: int) -> None:
        """Set the next transaction id of a stopped server to a later one."""
        home = postgres.home_of(self._state)
        user = home.user
        subprocess.run(
            [home.programs / "bin" / "pg_resetwal", "-x", str(until), home.data],
            check=True,
            cwd="/",
            user=user.uid if user else None,
            group=user.gid if user else None,
        )

    def backdate_prepared(self, age_s: float) -> None:
        """Backdate the prepared transactions of a stopped server."""
        folder = postgres.home_of(self._state).data / "pg_twophase"
        for file in folder.iterdir():
            content = bytearray(file.read_bytes()[: -_CHECKSUM.size])
            (at,) = _PREPARED_AT.unpack_from(content, _PREPARED_AT_OFFSET)
            earlier = at - int(age_s * 1e6)
            _PREPARED_AT.pack_into(content, _PREPARED_AT_OFFSET, earlier)
            file.write_bytes(content + _CHECKSUM.pack(_crc32c(content)))

    def purge(self) -> None:
        """Stop the server, and remove its data."""
        part = dataclasses.replace(
            postgres.part(self._state, self._port), stop_within_s=0.0
        )
        lifecycle.take_down(part, self._state)
        postgres.remove_home(postgres.home_of(self._state))

    def one(self, statement: str) -> object:
        """Return the first value of a statement's result, if it has one."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            done = connection.execute(statement)
            row = done.fetchone() if done.description else None
        return None if row is None else row[0]

    def write_log_until(self, condition: str) -> None:
        """Write WAL until a condition on ``pg_replication_slots`` holds for a slot."""
        found = f"select bool_or({condition}) from pg_replication_slots"  # noqa: S608
        megabyte = "select pg_logical_emit_message(false, 'x', repeat('x', 1000000))"

        def holds() -> bool:
            self.one(megabyte)
            return bool(self.one(found))

        until(holds, condition, pause_s=0.0)

    def inflate(self, table: str, segments: int) -> None:
        """Give a table full-size sparse segments, which take no disk space."""
        path = self.one(f"select pg_relation_filepath('{table}')")
        file_path = postgres.home_of(self._state).data / str(path)
        for number in range(segments):
            segment = (
                file_path.with_name(f"{file_path.name}.{number}")
                if number
                else file_path
            )
            with segment.open("ab") as file:
                file.truncate(_SEGMENT_BYTES)
            owner = file_path.stat()
            segment.chmod(0o600)
            # The server runs as a different user if root runs the tests.
            shutil.chown(segment, owner.st_uid, owner.st_gid)


def _crc32c(content: bytes) -> int:
    """Return the CRC-32C with which Postgres verifies a file."""
    value = 0xFFFFFFFF
    for byte in content:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF
