"""Responses of targets: foreign aliases, lost shards, wrong protocols."""

from datetime import UTC, datetime
from types import SimpleNamespace
from urllib.parse import quote

import pytest
import redis

from towpath.schemas.failure import ConfigurationError
from towpath.settings import Route, Sink
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.postgres import parameters_of
from towpath.sinks.targets.cache import client as cache_client
from towpath.sinks.targets.cache import read as cache_read
from towpath.sinks.targets.cache import upkeep as cache_upkeep
from towpath.sinks.targets.cache.client import translated
from towpath.sinks.targets.postgres.client import TargetSession
from towpath.sinks.targets.postgres.schema import unfit_name
from towpath.sinks.targets.search import client as search_client
from towpath.sinks.targets.search import read
from towpath.sinks.targets.search import upkeep as search_upkeep
from towpath.sinks.targets.search.client import indexes_of
from towpath.sinks.targets.search.upkeep import SearchUpkeep

SINK = Sink(
    name="s", kind="cache", url="redis://x", route=(Route(topic="t", name="r"),)
)


def described(uuid, *aliases):
    """Describe an index, as the server does."""
    index = {"uuid": uuid}
    return {"settings": {"index": index}, "aliases": {name: {} for name in aliases}}


def test_an_alias_that_an_operator_shares_among_indexes_is_not_a_mistake():
    """
    Only the aliases of the sink's own routes must point to one index each.
    """
    answer = {
        "orders-1": described("a", "orders", "everything"),
        "customers-1": described("b", "customers", "everything"),
    }
    client = SimpleNamespace(indices=SimpleNamespace(get=lambda **_: answer))
    found = indexes_of(client, ["orders", "customers"])

    assert {"orders": "orders-1", "customers": "customers-1"} == {
        alias: index.name for alias, index in found.items()
    }


def test_tombstones_of_every_route_are_deleted_in_turn():
    """
    A route with many tombstones does not delay the others, even at a new position.
    """
    purged = []
    indexes = SimpleNamespace(
        known_routes=lambda: ["a", "b"], index_names=lambda route: [route]
    )

    def delete(index, **_):
        purged.extend(index)
        return {"deleted": 10 if index == ["a"] else 1}

    upkeep = SearchUpkeep(SimpleNamespace(delete_by_query=delete), indexes, 10)
    for safe in ("1", None, None, "2", None):
        upkeep.purge(safe)

    assert ["a", "b", "a", "a", "b"] == purged


DOCUMENT = {"_id": "7", "found": True, "_source": {"id": 7}}


@pytest.mark.parametrize(
    ("documents", "page"),
    [
        ([{"_id": "7", "error": {"reason": "no shard"}}], {"timed_out": True}),
        ([DOCUMENT, {"_id": "8", "error": {}}], {"_shards": {"failed": 1}}),
    ],
)
def test_rows_of_a_silent_shard_do_not_count_as_absent(monkeypatch, documents, page):
    """
    Otherwise its rows would be reported as missing, and requested again.
    """
    hits = {"hits": {"hits": [DOCUMENT]}, "_scroll_id": "1"}
    client = SimpleNamespace(
        indices=SimpleNamespace(
            get_alias=lambda **_: {"orders-1": {}}, refresh=lambda **_: None
        ),
        mget=lambda **_: {"docs": documents},
        search=lambda **_: hits | page,
        clear_scroll=lambda **_: None,
    )
    monkeypatch.setattr(read, "connect", lambda *_args, **_more: client)
    reader = read.SearchReader("http://x")

    for rows in (reader.at("orders", ["7"]), reader.rows("orders")):
        with pytest.raises(TargetUnavailableError):
            list(rows)


def test_a_server_with_a_different_protocol_is_unavailable():
    """
    A server on the wrong port, or one that expects TLS, uses a different protocol.
    """

    def call():
        with translated():
            message = "Protocol Error: b'HTTP/1.1 400'"
            raise redis.exceptions.InvalidResponse(message)

    with pytest.raises(TargetUnavailableError, match="InvalidResponse"):
        call()


@pytest.mark.parametrize("name", ["_row", "_kept", "_position"])
def test_columns_of_the_sinks_own_tables_are_refused(name):
    """
    The tables of batches have two more columns than the table itself.
    """
    assert unfit_name(name)
    assert not unfit_name(f"{name}s")


def test_a_column_name_that_postgres_truncates_is_refused():
    """
    The sink would not find the truncated name when it opens its table again.
    """
    assert "more than 63 bytes" in unfit_name("ä" * 32)
    assert not unfit_name("ä" * 31)


@pytest.mark.parametrize(
    "answer",
    [
        redis.exceptions.NoPermissionError("no permissions to run 'config|get'"),
        # A hosted server may not have this command.
        redis.ResponseError(
            "unknown command 'CONFIG', with args beginning with: 'GET'"
        ),
    ],
)
def test_the_health_of_a_cache_omits_facts_that_the_server_hides(answer):
    """
    The other facts are reported.
    """

    def refuse(*_):
        raise answer

    client = SimpleNamespace(
        info=lambda section: {"redis_version": "7.2"} if section == "server" else {},
        connection_pool=SimpleNamespace(connection_kwargs={"host": "x", "port": 1}),
        config_get=refuse,
        time=refuse,
    )
    servers = SimpleNamespace(discover=lambda: None, all=(client,), close=lambda: None)
    clock = SimpleNamespace(now=lambda: None)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cache_upkeep, "Servers", lambda _: servers)
        found = list(cache_upkeep.health(SINK, clock))

    assert ["cache-no-file"] == [each.id for each in found]
    assert found[0].why.startswith("a restart may lose all rows")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://cache:6380", "cache:6380"),
        ("redis://cache", "cache:6379"),
        ("unix:///run/cache.sock", "/run/cache.sock"),
    ],
)
def test_a_finding_names_the_address_of_the_caches_server(url, address, monkeypatch):
    """
    A server with a socket file has neither host nor port.
    """
    client = cache_client.connect(url)
    facts = {"redis_version": "6.2", "aof_enabled": 1}
    monkeypatch.setattr(client, "info", lambda _: facts)
    monkeypatch.setattr(client, "config_get", lambda _: {})
    monkeypatch.setattr(client, "time", lambda: (0, 0))
    servers = SimpleNamespace(discover=lambda: None, all=(client,), close=lambda: None)
    monkeypatch.setattr(cache_upkeep, "Servers", lambda _: servers)
    clock = SimpleNamespace(now=lambda: datetime.fromtimestamp(0, UTC))

    [found] = cache_upkeep.health(SINK, clock)

    assert f"{address} has version 6.2" == found.what


def test_a_cluster_with_a_socket_file_is_reached_at_its_servers():
    """
    Only the first server has the socket file; all of them have the same login.
    """
    first = cache_client.connect("unix://me:secret@/run/cache.sock")
    other = cache_client.connect_to(first, "cache-2", 6380)
    made = other.connection_pool.make_connection()

    assert ("cache-2", 6380, "me", "secret") == (
        *(made.host, made.port),
        *(made.username, made.password),
    )


def test_a_refused_command_is_reported_for_any_user_name():
    """
    The refusal contains the user name, which may be a word that other refusals use.
    """

    def execute(*arguments):
        if arguments[0] == "SCAN":
            text = "User access has no permissions to run the 'scan' command"
            raise redis.exceptions.NoPermissionError(text)

    client = SimpleNamespace(
        info=lambda _: {"cluster_enabled": 0},
        config_get=lambda *_: {},
        execute_command=execute,
        close=lambda: None,
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cache_client, "connect", lambda _: client)
        [found] = cache_upkeep.missing_rights(SINK, "towpath")

    assert "the cache's user may not run SCAN: ACL SETUSER <user> +scan" == found


class ForeignHash:
    """A server with one hash of another program, whose bytes are not UTF-8."""

    is_cluster = False

    def __init__(self, *_):
        self.all = (self,)
        self._read = []

    def discover(self):
        """Do nothing."""

    def client_of(self, _):
        """Return the only server."""
        return self

    def pipeline(self, **_):
        """Return the server itself."""
        return self

    def scan(self, *_):
        """Return its key, as the client decodes it."""
        return iter([b"towpath:orders:7\xff".decode(errors="surrogateescape")])

    def hgetall(self, name):
        """Keep a key to be read."""
        self._read.append(name.encode(errors="surrogateescape"))

    def execute(self, **_):
        """Return a hash for the known key, and none for any other."""
        read, self._read = self._read, []
        found = {b"n\xfe".decode(errors="surrogateescape"): "1"}
        return [dict(found) if one == b"towpath:orders:7\xff" else {} for one in read]


def test_a_key_of_another_program_that_is_not_utf_8_can_be_verified(monkeypatch):
    """
    It is reported as text, and found again by this text.
    """
    monkeypatch.setattr(cache_read, "Servers", ForeignHash)
    reader = cache_read.CacheReader("redis://x", "towpath")
    rows = [*reader.rows("orders"), *reader.at("orders", ["7%FF"])]

    assert [("7%FF", {r"n\xfe": "1"})] * 2 == [(row.key, row.fields) for row in rows]


def test_a_key_of_another_program_that_looks_escaped_can_be_verified(monkeypatch):
    """
    Its text differs from the keys of our rows, and finds only its own row.
    """
    foreign = {
        "caf%C3%A9": ("caf%%C3%%A9", {"v": "foreign"}),
        "café": ("café", {"v": "ours"}),
    }

    class Server(ForeignHash):
        def scan(self, *_):
            return iter([f"towpath:orders:{name}" for name in foreign])

        def execute(self, **_):
            read, self._read = self._read, []
            names = [one.decode().removeprefix("towpath:orders:") for one in read]
            return [dict(foreign[name][1]) if name in foreign else {} for name in names]

    monkeypatch.setattr(cache_read, "Servers", Server)
    reader = cache_read.CacheReader("redis://x", "towpath")
    found = [(row.key, row.fields) for row in reader.rows("orders")]
    sought = [(row.key, row.fields) for row in reader.at("orders", [*dict(found)])]

    assert [*foreign.values()] == found
    assert found == sought


@pytest.mark.parametrize(
    ("synced", "missing"), [("always", ["WAITAOF"]), ("everysec", [])]
)
def test_a_cache_whose_writes_are_awaited_needs_permission_to_await_them(
    synced, missing
):
    """
    Without it, the first flush would be refused.
    """

    def execute(*arguments):
        if arguments[0] == "WAITAOF":
            refusal = "no permissions to run the 'waitaof' command"
            raise redis.exceptions.NoPermissionError(refusal)

    client = SimpleNamespace(
        info=lambda _: {"cluster_enabled": 0},
        config_get=lambda *_: {"appendonly": "yes", "appendfsync": synced},
        execute_command=execute,
        close=lambda: None,
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cache_client, "connect", lambda _: client)
        found = list(cache_upkeep.missing_rights(SINK, "towpath"))

    assert missing == [text.split(":")[0].split()[-1] for text in found]


@pytest.mark.parametrize(
    "read",
    [
        lambda: cache_client.connect("redis://me:secret@cache:x"),
        lambda: cache_client.connect("cache:6379"),
        lambda: search_client.connect("http://me:secret@index:x"),
        lambda: search_client.connect("http://me:secret@[::1"),
        lambda: TargetSession("postgresql://me:secret@[::1").transaction().__enter__(),
        lambda: TargetSession("http://me:secret@db").transaction().__enter__(),
        lambda: parameters_of("host=db password=my secret"),
    ],
    ids=[
        *("cache port", "cache scheme", "index port", "index host"),
        *("db host", "db", "db for lineage"),
    ],
)
def test_an_address_that_cannot_be_read_is_a_mistake_in_the_configuration(read):
    """
    The error has a remedy, and does not repeat the address with its password.
    """
    with pytest.raises(ConfigurationError, match=r"url.* is not ") as raised:
        read()

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("character", ["x", "ü", "中"])
def test_the_health_of_many_indexes_is_read_in_calls_that_fit_in_a_request_line(
    character,
):
    """
    OpenSearch refuses a request line of more than 4 KB.

    It accepts index names of up to 255 bytes.
    """
    lines = []

    def describe(index, params):
        assert params
        lines.append(index)
        return {
            f"{name}-1": {"settings": {"index": {"refresh_interval": "-1"}}}
            for name in index.split(",")
            if not name.endswith("-next")
        }

    name = character * (200 // len(character.encode()))
    routes = [Route(topic="t", name=f"{name}{number:03}") for number in range(60)]
    client = SimpleNamespace(
        info=lambda: {"version": {"number": "3.1.0"}},
        transport=SimpleNamespace(perform_request=lambda *_: {}),
        indices=SimpleNamespace(get=describe),
        close=lambda: None,
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(search_upkeep, "connect", lambda _: client)
        sink = SINK.model_copy(update={"route": tuple(routes)})
        clock = SimpleNamespace(now=lambda: None)
        found = list(search_upkeep.health(sink, clock))

    assert 60 == len([one for one in found if one.id == "search-refresh"])
    assert max(len(quote(line)) for line in lines) < 4000


def test_the_old_index_of_a_rebuild_needs_no_refresh_interval():
    """
    The sink refreshes it after each batch, and only after the new index.
    """
    indexes = {
        "orders-1": {"aliases": {"orders": {}}},
        "orders-2": {"aliases": {"orders-next": {}}},
        "lines-1": {"aliases": {"lines": {}}},
    }
    for index in indexes.values():
        index["settings"] = {"index": {"refresh_interval": "-1"}}

    def describe(index, params):
        del params
        names = set(index.split(","))
        return {n: one for n, one in indexes.items() if names & one["aliases"].keys()}

    client = SimpleNamespace(
        info=lambda: {"version": {"number": "3.1.0"}},
        transport=SimpleNamespace(perform_request=lambda *_: {}),
        indices=SimpleNamespace(get=describe),
        close=lambda: None,
    )
    routes = tuple(Route(topic="t", name=name) for name in ("orders", "lines"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(search_upkeep, "connect", lambda _: client)
        sink = SINK.model_copy(update={"route": routes})
        clock = SimpleNamespace(now=lambda: None)
        found = list(search_upkeep.health(sink, clock))

    assert [
        "index lines-1 is never refreshed",
        "index orders-2 is never refreshed",
    ] == [one.what for one in found if one.id == "search-refresh"]
