"""Who kills: the relay at once, and the server's processes that serve it."""

from typing import Final

from towpath.loadtests.chaos.actor import Actor
from towpath.loadtests.chaos.place import RELAY, Options, Place
from towpath.loadtests.chaos.relay import APPLICATION, Relay
from towpath.loadtests.chaos.tables import Session

_PAUSE_S: Final = 1.0
_BETWEEN_S: Final = 12.0
_BACKENDS: Final = """
select pid from pg_stat_activity
where datname = current_database() and application_name = %s order by pid
"""


class Killer(Actor):
    """Kills one after the other; a killed relay is started again at once."""

    def __init__(self, place: Place, options: Options, relay: Relay, seed: str) -> None:
        super().__init__(place, "killer", seed, _PAUSE_S)
        self._relay = relay
        self._victims = options.kill

    def step(self, session: Session) -> None:
        """Wait a while, and kill."""
        self.rest(_BETWEEN_S)
        victim = self.random.choice(self._victims)
        draw = self.random.random()
        if victim == RELAY:
            self._relay.kill()
            # Sometimes again, before it has begun to stream.
            if draw < 0.2:  # noqa: PLR2004 - a share
                self._relay.kill()
        else:
            pids = [pid for (pid,) in session.execute(_BACKENDS, (APPLICATION,))]
            if not pids:
                return
            chosen = pids[int(draw * len(pids))]
            session.execute("select pg_terminate_backend(%s)", (chosen,))
        self.counts[victim] += 1
