"""Users with only the rights in docs/rights.md can do all of their work."""

import json
import re
import uuid
from contextlib import contextmanager

import psycopg
import pytest
import redis

from support.http_recorder import recorded
from support.rights import command_for, documented, search_calls, search_rights
from support.search_index import ROUTE, OneShape, change, write_index
from support.verified_sink import CacheEditor, VerifiedRig
from towpath.cli import app
from towpath.schemas.clock import SystemClock
from towpath.settings import Route, Sink
from towpath.sinks.change import Floor, Origin
from towpath.sinks.ports import Batch
from towpath.sinks.targets.cache.losses import CacheWatch
from towpath.sinks.targets.cache.read import CacheReader
from towpath.sinks.targets.cache.sink import CacheSink
from towpath.sinks.targets.cache.upkeep import erase
from towpath.sinks.targets.search.client import connect
from towpath.sinks.targets.search.read import SearchReader
from towpath.sinks.targets.search.rights import missing_rights
from towpath.sinks.targets.search.sink import SearchSink
from towpath.sinks.targets.search.upkeep import erase as erase_search

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@contextmanager
def redis_user(stack, name, prefix, *rights):
    """Create a cache user with the documented command, and yield its URL."""
    documented_command = command_for(name)
    user = f"{name}-{prefix}"
    rules = rights or [
        word.replace("towpath:", f"{prefix}:") for word in documented_command[3:]
    ]
    with redis.Redis.from_url(stack.redis_url) as owner:
        owner.execute_command("ACL", "SETUSER", user, *rules)
        try:
            yield stack.redis_url.replace("redis://", f"redis://{user}:secret@")
        finally:
            owner.acl_deluser(user)


def sink_at(url):
    """Return the settings of a cache with one route."""
    route = Route(topic="towpath.shop.orders", name=ROUTE)
    return Sink(name="cache", kind="cache", url=url, route=(route,))


def test_a_cache_is_written_and_verified_with_the_documented_rights(stack, tmp_path):
    """
    The sink's user applies changes and a sweep, and erases the route at the end.

    The verifier's user can read, but cannot write.
    """
    prefix = f"p{uuid.uuid4().hex[:8]}"
    with (
        redis_user(stack, "towpath_sink", prefix) as url,
        redis_user(stack, "towpath_verifier", prefix) as reading,
    ):
        watch = CacheWatch("cache", tmp_path / "cache.json", (ROUTE,), None)
        for attempt in range(2):
            sink = CacheSink(url, prefix, 3600, watch)
            sink.open()
            at = 80 * attempt
            rows = [change(key, at + 8, {"id": key, "v": "a"}) for key in range(3)]
            sink.apply(Batch(0, tuple(rows)))
            partial = change(1, at + 16, {"id": 1}, frozenset({"id"}))
            sink.apply(Batch(1, (partial, change(2, at + 16, None))))
            assert 5 == sink.flush().applied
            sink.close()
        reader = CacheReader(reading, prefix)
        found = {row.key: row.fields.get("v") for row in reader.rows(ROUTE)}
        sampled = {row.key for row in reader.sample(ROUTE, 3)}
        reader.close()
        with (
            redis.Redis.from_url(reading) as client,
            pytest.raises(redis.exceptions.NoPermissionError),
        ):
            client.hset(f"{prefix}:{ROUTE}:1", "v", "b")
        sink = CacheSink(url, prefix, 3600, watch)
        sink.open()
        sink.apply(
            Batch(
                2,
                floors=(
                    Floor(ROUTE, f"{400:016x}.0000000000", False, Origin(ROUTE, 0, 0)),
                ),
            )
        )
        sink.flush()
        sink.close()
        erase(sink_at(url), prefix)
    with redis.Redis.from_url(stack.redis_url) as client:
        remaining = [*client.scan_iter(f"{prefix}:*")]

    assert {"0": "a", "1": "a", "2": None} == found
    assert found.keys() == sampled
    assert [] == remaining


def check_command(stack, folder, prefix, kind, url, route):
    """Write a configuration with one sink; return the arguments that check it."""
    path = folder / "towpath.toml"
    path.write_text(
        f"""
version = 1
[[source]]
dsn = "{stack.dsn("postgres")}"
prefix = "{prefix}"
[kafka]
bootstrap_servers = "{stack.kafka}"
[registry]
url = "http://unused"
[[sink]]
name = "it"
kind = "{kind}"
url = "{url}"
[[sink.route]]
topic = "{prefix}.{ROUTE}"
name = "{route}"
"""
    )
    return ["sink", "check", "--config", str(path)]


@pytest.mark.parametrize("rights", [(), ("+info",), ("+info", "+scan", "+hgetall")])
def test_sink_check_names_all_rights_that_the_caches_user_lacks(
    stack, tmp_path, capsys, rights
):
    """
    All missing commands and key patterns are reported together, with the ACL rules.

    Once these are granted, the check succeeds; it writes nothing.
    """
    prefix = f"p{uuid.uuid4().hex[:8]}"
    stack.up("kafka")
    limited = ("on", ">secret", "resetkeys", f"~{prefix}:{ROUTE}:*", "-@all", *rights)
    required = set(command_for("towpath_sink")[8:]) - set(rights)
    with redis_user(stack, "towpath_sink", prefix, *limited) as url:
        arguments = check_command(stack, tmp_path, prefix, "cache", url, ROUTE)
        capsys.readouterr()
        code = app.run(arguments)
        printed = "".join(capsys.readouterr())
        granted = [word for word in printed.split() if word.startswith(("+", "~"))]
        with redis.Redis.from_url(stack.redis_url) as owner:
            user = f"towpath_sink-{prefix}"
            owner.execute_command("ACL", "SETUSER", user, *required, f"~{prefix}:*")
            after = app.run(arguments)
            remaining = [*owner.scan_iter(f"{prefix}:*")]

    assert required == {word for word in granted if word.startswith("+")}
    assert "may not run" in printed
    assert (0, []) == (after, remaining)
    assert code in {1, 2}


def as_role(dsn, role):
    """Return the address with a different role."""
    return dsn.replace("postgres@", f"{role}@")


def may(dsn, statement):
    """Return whether a role may run a statement."""
    with psycopg.connect(dsn) as connection:
        try:
            connection.execute(statement)
        except psycopg.errors.InsufficientPrivilege:
            return False
    return True


class Roles:
    """The documented roles of a database, under names with the test's prefix."""

    def __init__(self, dsn, prefix):
        self.dsn = dsn
        self.prefix = prefix
        self.before, self.after = documented("sql", "Postgres")
        self.names = re.findall(r"create role towpath_(\w+)", self.before)

    def of(self, name):
        """Return a role's address."""
        return as_role(self.dsn, f"{self.prefix}_{name}")

    def run(self, dsn, text):
        """Run the statements of a block."""
        text = text.replace("towpath_", f"{self.prefix}_")
        text = text.replace("database shop", f"database {self.prefix}")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(re.sub(r"\bshop\b", "s", text))

    def drop(self):
        """Drop the roles, and everything that they own."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for name in self.names:
                role = f"{self.prefix}_{name}"
                connection.execute(f"drop owned by {role} cascade")
                connection.execute(f"drop role {role}")


@pytest.fixture
def roles(database, unique):
    """Provide the roles, created as an administrator would."""
    roles = Roles(database, unique)
    roles.run(database, roles.before)
    yield roles
    roles.drop()


@pytest.fixture
def rig(stack, roles, unique, tmp_path):
    """Provide a source whose tables belong to the owner's role."""
    stack.up("kafka", "redis")
    rig = VerifiedRig(roles.of("owner"), stack.kafka, unique, tmp_path)
    yield rig
    rig.dsn = roles.dsn
    rig.close()


@pytest.mark.timeout(120)
def test_each_process_works_with_its_documented_role(
    rig, roles, stack, capsys, monkeypatch
):
    """
    Owner, relay, service, operator, verifier and cleaner can do their work.

    All but the owner are refused a statement that they must not run.
    """
    sink = f'kind = "cache"\nurl = "{stack.redis_url}"'
    rig.prepare(sink, {"t": "id int primary key, v text"})
    roles.run(roles.of("owner"), roles.after)
    text = rig.config.read_text()
    rig.config.write_text(text.replace(roles.of("owner"), roles.of("relay")))

    def run(role, *arguments):
        monkeypatch.setenv("TOWPATH_SOURCE__DSN", roles.of(role))
        return app.run([*arguments, "--config", str(rig.config)])

    with psycopg.connect(roles.of("service"), autocommit=True) as service:
        service.execute("insert into s.t select n, 'x' from generate_series(1, 50) n")
        with rig.followed():
            service.execute("update s.t set v = 'y' where id <= 9")
            service.execute("delete from s.t where id = 50")
            service.execute(
                "insert into towpath.outbox (id, aggregate_type, aggregate_id, type)"
                " values (gen_random_uuid(), 'order', '1', 'Placed')"
            )
            started = run("operator", "snapshot", "start", "s.t", "--wait")
            listed = run("operator", "snapshot", "list")
            lsn = rig.one("select pg_current_wal_lsn()::text")
            waited = run("verifier", "wait", "--lsn", lsn, "--sink", "it")
            CacheEditor(stack.redis_url, rig.prefix, "t").lose(7)
            verified = run("verifier", "verify", "it", "--repair")
            cleaned = run("cleaner", "outbox", "clean", "--keep-days", "0")
            status = run("relay", "relay", "status")
            capsys.readouterr()
            run("relay", "doctor", "--json")
            found = json.loads(capsys.readouterr().out)
    is_allowed = {
        "service": may(roles.of("service"), "select from towpath.signal"),
        "verifier": may(roles.of("verifier"), "delete from s.t"),
        "operator": may(roles.of("operator"), "select from s.t"),
        "relay": may(roles.of("relay"), "delete from s.t"),
        "cleaner": may(roles.of("cleaner"), "select from s.t"),
    }

    assert [0] * 6 == [started, listed, waited, verified, cleaned, status]
    assert 0 == rig.one("select count(*) from towpath.outbox")
    assert [] == [row["what"] for row in found if row["level"] != "warning"]
    assert not any(is_allowed.values())


@pytest.mark.timeout(120)
def test_doctor_names_all_rights_that_the_relays_role_lacks(rig, roles, capsys):
    """
    The doctor lists the schema and each table of the relay, with the GRANT to run.
    """
    sink = 'kind = "cache"\nurl = "redis://127.0.0.1:1"'
    rig.prepare(sink, {"t": "id int primary key, v text"})
    text = rig.config.read_text()
    rig.config.write_text(text.replace(roles.of("owner"), roles.of("relay")))

    def lacking():
        capsys.readouterr()
        app.run(["doctor", "--json", "--config", str(rig.config)])
        rows = json.loads(capsys.readouterr().out)
        return [row for row in rows if " lacks " in row["what"]]

    before = lacking()
    with psycopg.connect(roles.of("owner"), autocommit=True) as owner:
        for row in before:
            owner.execute(row["cure"].removeprefix("run as the owner: "))
    after = lacking()

    role = f"{rig.prefix}_relay"
    tables = ("captured", "heartbeat", "signal", "snapshot")
    rights = {
        'usage on schema "towpath"',
        'select on "towpath"."relay"',
        *(f'delete, insert, select, update on "towpath"."{t}"' for t in tables),
    }
    found = {row["what"].removeprefix(f"the role {role} lacks ") for row in before}
    assert (rights, []) == (found, after)


def normal(calls):
    """Replace names in the paths of calls with placeholders."""
    found = set()
    for verb, path in calls:
        first, *rest = path.lstrip("/").split("/")
        if first and not first.startswith("_"):
            first = "{index}"
        if rest[:1] == ["_doc"]:
            rest[1:] = ["{id}"]
        if rest[:1] == ["_alias"]:
            rest[1:] = ["{name}"]
        found.add((verb, "/" + "/".join((first, *rest))))
    return found


def test_only_documented_calls_are_sent_to_an_index(stack):
    """
    The sink's writes, the verifier's reads and the final erasure are recorded.
    """
    name = f"orders-{uuid.uuid4().hex[:8]}"
    route = Route(topic="towpath.shop.orders", name=name)

    with recorded(stack.opensearch_url) as (url, written):
        write_index(url, route)
    with recorded(stack.opensearch_url) as (url, read):
        reader = SearchReader(url)
        rows = {row.key for row in reader.rows(name)}
        assert rows >= {row.key for row in reader.sample(name, 1)}
        assert {"1"} == {row.key for row in reader.at(name, ["1"])}
        reader.close()
    with recorded(stack.opensearch_url) as (url, erased):
        erase_search(Sink(name="it", kind="search", url=url, route=(route,)), "p")

    operator = search_calls("operator")
    assert {"1", "2"} == rows
    assert normal(written) <= search_calls("sink")
    assert normal(read) == search_calls("verifier")
    assert {("GET", "/{index}"), ("DELETE", "/{index}")} == normal(erased) & operator
    assert normal(erased) <= operator


def one_call(verb, path):
    """Return a call in the form of the documented table."""
    [named] = normal({(verb, path)})
    return named


def security_error(action):
    """Return the security plugin's error about an action that a role may not run."""
    reason = f"no permissions for [{action}] and User [name=it]"
    return {"type": "security_exception", "reason": reason}


def grants(actions, on):
    """Format the actions that a role needs on the cluster and on the indexes."""
    on_cluster = [action for action, mark in actions if mark]
    on_indexes = [action for action, mark in actions if mark != "cluster"]
    parts = ((on_cluster, "on the cluster"), (on_indexes, on))
    return ", and ".join(f"{', '.join(some)} {scope}" for some, scope in parts if some)


def state_of(client, index):
    """Return facts about an index that any write to it would change."""
    shards = client.indices.stats(index=index, params={"level": "shards"})["indices"]
    numbers = shards[index]["shards"]["0"][0]["seq_no"]
    names = sorted(client.indices.get(index=f"{index.removesuffix('-1')}*"))
    return numbers, client.indices.get(index=index), names


@pytest.fixture
def index(stack):
    """Provide a route whose index exists, and a client."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    route = Route(topic="towpath.shop.orders", name=name)
    sink = SearchSink(stack.opensearch_url, (route,), OneShape(), SystemClock())
    sink.open()
    sink.close()
    client = connect(stack.opensearch_url)
    yield route, client
    client.indices.delete(index=f"{name}-1")
    client.close()


def test_each_right_that_a_role_lacks_on_an_index_is_found_without_a_write(
    stack, index
):
    """
    The sink's documented calls are refused one at a time; in the last run, none is.

    The only sign of a refusal is the response status 403.
    """
    route, client = index
    before = state_of(client, f"{route.name}-1")
    found = {}
    for refused in (*search_rights("sink"), None):

        def answer(verb, path, refused=refused):
            return (403, b"no") if one_call(verb, path) == refused else None

        with recorded(stack.opensearch_url, answer) as (url, _):
            sink = Sink(name="it", kind="search", url=url, route=(route,))
            found[refused] = [*missing_rights(sink, "p")]

    assert [] == found.pop(None)
    who = "the search index's user lacks the rights for"
    on = f"on the indexes {route.name}, {route.name}-*"
    assert found == {
        (verb, path): [f"{who} {verb} {path}: grant its role {grants(actions, on)}"]
        for (verb, path), actions in search_rights("sink").items()
    }
    assert before == state_of(client, f"{route.name}-1")


def test_sink_check_names_all_rights_that_a_role_lacks_on_an_index(
    stack, index, tmp_path, capsys
):
    """Every action that is refused for a call or one of its documents is listed."""
    route, _ = index
    stack.up("kafka")
    item_error = security_error("indices:data/write/bulk[s]")
    bulk = {"errors": True, "items": [{"index": {"status": 403, "error": item_error}}]}
    create = {"error": security_error("indices:admin/create"), "status": 403}
    refused = {
        ("PUT", "/{index}"): (403, json.dumps(create).encode()),
        ("POST", "/{index}/_refresh"): (403, b"no"),
        ("POST", "/_bulk"): (200, json.dumps(bulk).encode()),
    }

    def answer(verb, path):
        return refused.get(one_call(verb, path))

    with recorded(stack.opensearch_url, answer) as (url, _):
        arguments = check_command(stack, tmp_path, "p", "search", url, route.name)
        capsys.readouterr()
        code = app.run(arguments)
        printed = capsys.readouterr().out
        refused.clear()
        after = app.run(arguments)

    bulk_action, write = "indices:data/write/bulk*", "indices:data/write/"
    missing = (
        f"indices:admin/create, indices:admin/aliases, {bulk_action}, {write}index,"
        f" {write}delete, indices:admin/refresh*"
    )
    assert (
        f"grant its role {bulk_action} on the cluster, and {missing} on the" in printed
    )
    assert (1, 0) == (code, after)
