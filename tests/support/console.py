"""The console as a process that controls a platform of real servers."""

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import redis
import requests

from support.disaster import PATIENCE_S, Disaster
from support.waiting import until
from towpath.deploy.local import ports
from towpath.deploy.local.stack import LazyStack, Stack

TOKEN = "a-token-of-this-test-alone"  # noqa: S105 - opens nothing but this test
_CSRF_TOKEN = re.compile(r'name="csrf_token" value="([^"]+)"')
# Far above the numbers of the writer.
_OWN_ORDERS = itertools.count(5_000_000)
_MASKED = '\n[[sink.route.transforms]]\nmask = "note"\n'


class ServedConsole(NamedTuple):
    """A console that is served, and the platform that it shows."""

    address: str
    platform: Disaster

    def get(self, path: str, **query: str) -> requests.Response:
        """Request a page or a document."""
        return requests.get(f"{self.address}{path}", params=query, timeout=60)

    def json(self, path: str, **query: str) -> dict:
        """Request a document, which must exist."""
        response = self.get(path, **query)
        assert response.ok, response.text
        return response.json()

    def post(self, path: str, document: dict | None = None) -> requests.Response:
        """Send an action to the API, with the token."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = f"{self.address}{path}"
        return requests.post(url, json=document or {}, headers=headers, timeout=120)

    def browser(self) -> "Browser":
        """Return a browser that has logged in."""
        session = requests.Session()
        session.post(f"{self.address}/login", data={"token": TOKEN}, timeout=60)
        page = session.get(f"{self.address}/login", timeout=60).text
        return Browser(self.address, session, _CSRF_TOKEN.findall(page)[0])

    def audited(self) -> list[dict]:
        """Return the lines of the audit log, oldest first."""
        lines = self.audit_log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    @property
    def audit_log(self) -> Path:
        """The file of the audit log."""
        return self.platform.folder / "state" / "console" / "audit.jsonl"


class Browser(NamedTuple):
    """A session of the console, and the CSRF token that its forms repeat."""

    address: str
    session: requests.Session
    csrf_token: str

    def get(self, path: str) -> str:
        """Return a page."""
        return self.session.get(f"{self.address}{path}", timeout=60).text

    def send(self, path: str, **fields: str | list[str]) -> requests.Response:
        """Submit a form, and follow the redirect."""
        data = {"csrf_token": self.csrf_token, **fields}
        return self.session.post(f"{self.address}{path}", data=data, timeout=120)


def mask_notes(platform: Disaster) -> None:
    """Have the sink mask a column, so that the console must hide it."""
    text = platform.config.read_text(encoding="utf-8")
    platform.config.write_text(text.rstrip() + _MASKED, encoding="utf-8")


class CachedOrder(NamedTuple):
    """A cached order for which no further change is in flight."""

    cache: redis.Redis
    cache_key: str

    @property
    def note(self) -> str:
        """The note in the cache."""
        return self.cache.hget(self.cache_key, "note")

    def change_note(self, note: str) -> None:
        """Write a different note, bypassing the sink, as a fault would."""
        self.cache.hset(self.cache_key, "note", note)


@contextmanager
def settled_order(platform: Disaster) -> Iterator[CachedOrder]:
    """
    Insert an order that the writer never changes, and wait until it is in the cache.

    A change to any other order may still be in flight, and would undo what a test
    changes in the cache. A driver that restarts repeats its last batch: once the cache
    has a second order, inserted later, the batch of the first is not repeated.
    """
    client = redis.Redis.from_url(platform.shared.redis_url, decode_responses=True)
    with client as cache:
        cache_key, _later = (_insert_order(platform, cache) for _ in range(2))
        yield CachedOrder(cache, cache_key)


def _insert_order(platform: Disaster, cache: redis.Redis) -> str:
    """Insert an order; return its cache key once the cache has the order."""
    key = next(_OWN_ORDERS)
    cache_key = f"{platform.prefix}:{platform.prefix}-orders:{key}"
    platform.execute("insert into shop.orders values (%s, 'placed', 'x')", key)
    until(
        lambda: cache.exists(cache_key),
        "the cache has the order",
        timeout_s=PATIENCE_S,
    )
    return cache_key


@contextmanager
def served_console(
    platform: Disaster, token: str = TOKEN, *, is_demo: bool = False
) -> Iterator[ServedConsole]:
    """
    Serve the console until the end of a ``with`` block.

    Args:
        platform: The platform that it shows.
        token: The token of its login.
        is_demo: Whether the parts of the platform's own stack may be killed.
    """
    port = ports.any_free()
    file = platform.folder / "console.token"
    file.write_text(token, encoding="utf-8")
    command = [
        *(sys.executable, "-m", "towpath.cli", "console", f"--port={port}"),
        *("--config", str(platform.config), *(("--token-file", file) if token else ())),
        *(("--demo", platform.own.state.root) if is_demo else ()),
    ]
    log = platform.folder / "console.log"
    with log.open("ab") as output, subprocess.Popen(command, stderr=output) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            until(lambda: _is_ready(address), "the console serves", timeout_s=60.0)
            yield ServedConsole(address, platform)
        finally:
            process.terminate()


@contextmanager
def console_platform(
    stack: LazyStack,
    folder: Path,
    *kinds: str,
    relay: str = "",
    is_demo: bool = False,
) -> Iterator[ServedConsole]:
    """Serve a console for a platform of its own, while an application writes."""
    own = Stack(folder / "own")
    platform = None
    try:
        stack.up("kafka", "redis")
        files = folder / "platform"
        files.mkdir()
        platform = Disaster(stack, own, f"console_{folder.name}", files)
        with (
            platform.running(*kinds, relay=relay),
            served_console(platform, is_demo=is_demo) as served,
        ):
            yield served
    finally:
        if platform is not None:
            platform.close()
        own.purge()


def _is_ready(address: str) -> bool:
    try:
        return requests.get(f"{address}/health/ready", timeout=5).ok
    except (requests.ConnectionError, requests.Timeout):
        return False
