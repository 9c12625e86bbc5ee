"""Where chaos takes place, and what its caller chooses."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from towpath.loadtests.bench.place import Launcher
from towpath.schemas.clock import Clock

RELAY: Final = "relay"
BACKEND: Final = "backend"
VICTIMS: Final = (RELAY, BACKEND)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """
    All that a chaos run is given.

    Attributes:
        dsn: An empty database; its user must be a superuser.
        kafka: The broker's bootstrap address.
        prefix: Of topics; also the slot's name.
        towpath: The words that begin a command of ``towpath``.
        folder: For the configuration file.
        env: The whole environment of the relay.
        launcher: Starts processes.
    """

    dsn: str
    kafka: str
    prefix: str
    towpath: tuple[str, ...]
    folder: Path
    env: Mapping[str, str]
    launcher: Launcher
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """
    What the caller chooses.

    Attributes:
        minutes: For how long new rounds begin.
        seed: What the actors draw from.
        kill: Who is killed: ``relay``, ``backend``.
        ddl: Whether tables are altered.
        round_s: How long everybody is at work before a round is judged.
        rows: Of each table, at first.
        writers: Sessions that write.
        late: Whether some commits wait for a standby that is not there.
    """

    minutes: float
    seed: int
    kill: tuple[str, ...] = VICTIMS
    ddl: bool = True
    round_s: float = 20.0
    rows: int = 3000
    writers: int = 5
    late: bool = True
