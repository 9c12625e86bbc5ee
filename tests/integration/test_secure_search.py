"""A search index with TLS, logins and roles, checked by its security plugin."""

import pytest

from support.rights import search_role
from support.search_index import OneShape, write_index
from support.secure_kafka import write_certificates
from support.secure_search import SecureSearch
from towpath.settings import Route, SearchOptions, Sink
from towpath.sinks.errors import SearchRefusedError, TargetUnavailableError
from towpath.sinks.targets.search.read import SearchReader
from towpath.sinks.targets.search.rebuild import Rebuild
from towpath.sinks.targets.search.rights import missing_rights
from towpath.sinks.targets.search.schema import RouteFields
from towpath.sinks.targets.search.upkeep import erase

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Provide a server with the security plugin."""
    search = SecureSearch(tmp_path_factory.mktemp("search"))
    yield search
    search.close()


class Index:
    """A route to the server, and users with the documented roles."""

    def __init__(self, server, name):
        self.server = server
        self.route = Route(topic="towpath.shop.orders", name=name)

    def user(self, *roles):
        """Create a user with documented roles; return the address with its login."""
        name = f"{self.route.name}-{'-'.join(roles)}"
        self.server.add_user(name, search_role(self.route.name, *roles))
        return self.server.address(name)

    def sink(self, url):
        """Return the settings of a sink that writes to an address."""
        return Sink(name="it", kind="search", url=url, route=(self.route,))

    def missing(self, url):
        """List the rights that the user in an address lacks."""
        return list(missing_rights(self.sink(url), "p"))

    def read(self, url):
        """Read all keys as the verifier does."""
        reader = SearchReader(url)
        try:
            rows = {row.key for row in reader.rows(self.route.name)}
            assert rows >= {row.key for row in reader.sample(self.route.name, 1)}
            assert rows >= {row.key for row in reader.at(self.route.name, ["1"])}
        finally:
            reader.close()
        return rows

    def indexes(self):
        """List the existing indexes of the route."""
        return sorted(self.server.owner.indices.get(index=f"{self.route.name}*"))


@pytest.fixture
def index(server, unique, monkeypatch):
    """Provide a route, and trust the certificate authority of its server."""
    monkeypatch.setenv("SSL_CERT_FILE", str(server.authority))
    return Index(server, unique.replace("_", "-"))


def test_each_process_works_with_its_documented_role(index):
    """
    The sink writes, the verifier reads but cannot write, the operator drops the index.
    """
    sink, verifier = index.user("sink"), index.user("verifier")
    before = index.missing(sink), index.read(verifier)
    write_index(sink, index.route)
    rows = index.read(verifier)
    with pytest.raises(SearchRefusedError, match="403"):
        write_index(verifier, index.route)
    erase(index.sink(index.user("operator", "sink")), "p")

    assert (([], set()), {"1", "2"}, []) == (before, rows, index.indexes())


def test_an_index_is_rebuilt_with_the_operators_documented_role(index):
    """
    The role may create an index, copy tombstones, swap the alias, delete the old index.
    """
    write_index(index.user("sink"), index.route)
    fields = RouteFields(OneShape(), {})
    rebuild = Rebuild(index.user("operator", "sink"), SearchOptions(), fields)
    begun = rebuild.begin(index.route, "s1")
    swapped = rebuild.swap(index.route)
    rebuild.retire(index.route, InstantClock())

    assert (begun.new, [begun.new]) == (swapped.new, index.indexes())


class InstantClock:
    """A clock that does not wait."""

    def wait(self, _seconds):
        """Return immediately."""

    def monotonic_s(self):
        """Always return the same time."""
        return 0.0


def test_a_role_with_the_rights_that_sink_check_names_is_sufficient(index, server):
    """
    One check names every missing action, with its scope: the cluster or indexes.
    """
    name = f"{index.route.name}-poor"
    server.add_user(name, {"cluster_permissions": []})
    url = server.address(name)
    (finding,) = index.missing(url)
    cluster_actions, index_actions = named_actions(finding)
    patterns = [index.route.name, f"{index.route.name}-*"]
    allowed = {"index_patterns": patterns, "allowed_actions": index_actions}
    role = {"cluster_permissions": cluster_actions, "index_permissions": [allowed]}
    server.add_user(name, role)
    after = index.missing(url)
    write_index(url, index.route)

    assert ([], {"1", "2"}) == (after, index.read(url))


def named_actions(finding):
    """Return the actions to allow on the cluster, and those to allow on indexes."""
    found = {"the cluster": [], "the indexes": []}
    for part in finding.partition("grant its role ")[2].split(", and "):
        actions, _, scope = part.partition(" on ")
        found[scope[:11]] += actions.split(", ")
    return found.values()


def test_a_wrong_password_and_an_unknown_authority_are_refused(
    index, tmp_path, monkeypatch
):
    """
    Neither error contains the password.
    """
    url = index.user("sink")
    with pytest.raises(SearchRefusedError, match="returns 401") as wrong:
        index.missing(url.replace("%40", ""))
    write_certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with pytest.raises(TargetUnavailableError) as untrusted:
        index.missing(url)

    assert "certificate verify failed" in str(untrusted.value)
    assert "SSL_CERT_FILE" in str(untrusted.value)
    assert all("Horse" not in str(error.value) for error in (wrong, untrusted))
