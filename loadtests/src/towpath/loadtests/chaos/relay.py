"""
The relay under test: its configuration, process and log, and its killer.

The killer kills the relay or the server processes of its sessions.
"""

import json
import threading
from random import Random
from typing import Any, Final

import psutil

from towpath.loadtests.chaos.actor import Actor
from towpath.loadtests.chaos.context import RELAY, ChaosEnvironment, ChaosOptions
from towpath.loadtests.chaos.tables import TABLES, Session
from towpath.loadtests.errors import ChaosError

SINK: Final = "other"
TARGETED: Final = TABLES[0]
APPLICATION: Final = "towpath-relay"

_INIT: Final = "init"
_RELAY: Final = "relay"
_INIT_WITHIN_S: Final = 60.0
_SHOWN_LINES: Final = 6
_DELIVERIES: Final = ("idempotent", "idempotent", "transactional")
_WATERMARKS: Final = ("messages", "messages", "rows", "rows_deleted")
# Chunks are small, so that each kill and each alteration hits a chunk.
_CONFIGURATION: Final = """\
version = 1
state_folder = "{folder}"
[[source]]
dsn = "{dsn}"
prefix = "{prefix}"
slot = "{prefix}"
tables = {tables}
[kafka]
bootstrap_servers = "{kafka}"
[registry]
url = "http://127.0.0.1:1"
[topics]
partitions = 3
[relay]
heartbeat_interval_s = 0.5
delivery = "{delivery}"
[relay.snapshot]
watermarks = "{watermarks}"
chunk_rows = 200
chunk_time_ms = 10
chunk_bytes = 65536
readers = {readers}
[[sink]]
name = "{sink}"
kind = "search"
url = "http://127.0.0.1:1"
[[sink.route]]
topic = "{prefix}.{targeted}"
name = "other"
"""


class ChaosRelay:
    """The relay's process; thread-safe."""

    def __init__(self, environment: ChaosEnvironment, seed: int) -> None:
        """Draw the relay's settings from the seed; nothing is started yet."""
        draw = Random(f"{seed}.relay")
        self.settings: dict[str, str | int] = {
            "delivery": draw.choice(_DELIVERIES),
            "watermarks": draw.choice(_WATERMARKS),
            "readers": draw.randint(1, 4),
        }
        self.exits: list[str] = []
        self._environment = environment
        self._config = environment.folder / f"{environment.prefix}.toml"
        self._lock = threading.Lock()
        self._pid = 0

    def topic(self, collection: str) -> str:
        """Return the topic of a table."""
        return f"{self._environment.prefix}.{collection}"

    def prepare(self) -> None:
        """
        Write the configuration and run ``towpath relay init``.

        Raises:
            ChaosError: The command failed, or did not end in time.
        """
        environment = self._environment
        self._config.write_text(
            _CONFIGURATION.format(
                folder=environment.folder,
                dsn=environment.dsn,
                prefix=environment.prefix,
                tables=json.dumps([table.collection for table in TABLES]),
                kafka=environment.kafka,
                sink=SINK,
                targeted=TARGETED.collection,
                **self.settings,
            ),
            encoding="utf-8",
        )
        command = (*environment.towpath, "relay", "init", "--config", str(self._config))
        pid = environment.launcher.start(_INIT, command)
        try:
            code = psutil.Process(pid).wait(_INIT_WITHIN_S)
        except psutil.TimeoutExpired as error:
            reason = f"is not done after {_INIT_WITHIN_S:.0f} s"
            raise self._not_prepared(reason) from error
        finally:
            environment.launcher.stop(_INIT)
        if code != 0:
            reason = f"exited with code {code}"
            raise self._not_prepared(reason)

    def start(self) -> None:
        """Start the relay."""
        with self._lock:
            self._start()

    def kill(self) -> None:
        """Kill the relay with SIGKILL, and start it again."""
        with self._lock:
            self._environment.launcher.kill(_RELAY)
            self._start()

    def stop(self) -> None:
        """Stop the relay, and wait until it has ended."""
        with self._lock:
            self._environment.launcher.stop(_RELAY)

    def check(self) -> None:
        """Restart the relay if it ended unexpectedly, and keep the end of its log."""
        with self._lock:
            if not _is_alive(self._pid):
                self.exits.append(self.log_tail())
                self._start()

    def log_tail(self, name: str = _RELAY) -> str:
        """Return the last lines of a process's log."""
        log = self._environment.launcher.log(name)
        if not log.exists():
            return f"{log} does not exist"
        text = log.read_text(encoding="utf-8", errors="replace")
        return "\n".join([f"{log}:", *text.splitlines()[-_SHOWN_LINES:]])

    def warnings(self) -> dict[str, int]:
        """Count the relay's warnings and errors, by event and reason."""
        found: dict[str, int] = {}
        log = self._environment.launcher.log(_RELAY)
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            record = _parsed(line)
            if record.get("level") in {"warning", "error", "critical"}:
                name = f"{record.get('event')}: {record.get('reason', '')}"
                found[name] = found.get(name, 0) + 1
        return found

    def _not_prepared(self, reason: str) -> ChaosError:
        message = f"towpath relay init {reason}\n{self.log_tail(_INIT)}"
        return ChaosError(message)

    def _start(self) -> None:
        command = (
            *self._environment.towpath,
            "relay",
            "run",
            "--config",
            str(self._config),
        )
        self._pid = self._environment.launcher.start(_RELAY, command)


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _parsed(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 12.0
_BACKENDS: Final = """
select pid from pg_stat_activity
where datname = current_database() and application_name = %s order by pid
"""


class Killer(Actor):
    """Kills a random victim every few seconds, and restarts a killed relay."""

    def __init__(
        self,
        environment: ChaosEnvironment,
        options: ChaosOptions,
        relay: ChaosRelay,
        seed: str,
    ) -> None:
        super().__init__(environment, "killer", seed, _PAUSE_S)
        self._relay = relay
        self._victims = options.kill

    def step(self, session: Session) -> None:
        """Wait a while, then kill a victim."""
        self.rest(_MAX_PAUSE_S)
        victim = self.random.choice(self._victims)
        draw = self.random.random()
        if victim == RELAY:
            self._relay.kill()
            # Sometimes the relay is killed again, before it begins to stream.
            if draw < 0.2:  # noqa: PLR2004 - a share
                self._relay.kill()
        else:
            pids = [pid for (pid,) in session.execute(_BACKENDS, (APPLICATION,))]
            if not pids:
                return
            chosen = pids[int(draw * len(pids))]
            session.execute("select pg_terminate_backend(%s)", (chosen,))
        self.counts[victim] += 1
