"""
A separate OpenSearch with the real security plugin: TLS, logins and roles.

The plugin is not part of the local stack: the public repository has it for one older
release only, which is used here. A client with the owner's certificate may do
everything.
"""

import dataclasses
import re
import zipfile
from pathlib import Path
from typing import Final
from urllib.parse import quote

from opensearchpy import OpenSearch
from opensearchpy.exceptions import OpenSearchException

from support.secure_kafka import write_certificates
from support.waiting import stretched
from towpath.deploy.errors import NotReadyError
from towpath.deploy.local import lifecycle, servers
from towpath.deploy.local.part import Part, StateFolder
from towpath.deploy.local.ports import LOOPBACK
from towpath.sinks.jars import store

PASSWORD: Final = "correct Horse8/battery:staple@"  # noqa: S105 - an address quotes it
_USE: Final = "securesearch"
_PLUGIN: Final = "opensearch-security"
_SETTINGS: Final = f"""\
plugins.security.ssl.transport.pemcert_filepath: broker.pem
plugins.security.ssl.transport.pemkey_filepath: broker.key
plugins.security.ssl.transport.pemtrustedcas_filepath: ca.pem
plugins.security.ssl.transport.enforce_hostname_verification: false
plugins.security.ssl.http.enabled: true
plugins.security.ssl.http.pemcert_filepath: broker.pem
plugins.security.ssl.http.pemkey_filepath: broker.key
plugins.security.ssl.http.pemtrustedcas_filepath: ca.pem
plugins.security.allow_default_init_securityindex: true
plugins.security.authcz.admin_dn: ["CN=owner"]
plugins.security.nodes_dn: ["CN=broker"]
plugins.security.audit.type: noop
network.host: {LOOPBACK}
"""
_NO_RIGHTS: Final = "_meta:\n  type: rolesmapping\n  config_version: 2\n"


def _artifact(file: str) -> str:
    """Return the name of an archive without its version."""
    return re.sub(r"-\d.*", "", file)


class SecureSearch:
    """
    The server, with its address and users.

    Attributes:
        authority: The file of the certificate authority.
        owner: A client that may do everything.
    """

    def __init__(self, folder: Path) -> None:
        self._state = StateFolder(folder)
        self._state.create()
        port = servers.free_opensearch_port()
        part = servers.opensearch_part(self._state, port)
        self._config = part.folder / "data/node_1/config"
        self._config.mkdir(parents=True)
        write_certificates(self._config)
        self.authority = self._config / "ca.pem"
        self._address = f"{LOOPBACK}:{port}"
        self.owner = OpenSearch(
            hosts=[f"https://{self._address}"],
            ca_certs=str(self.authority),
            client_cert=str(self._config / "client.pem"),
            client_key=str(self._config / "client.key"),
            timeout=20,
        )
        self._part = self._secured(part)
        lifecycle.bring_up(self._part, self._state)

    def address(self, user: str) -> str:
        """Return the address for a user, as a sink's ``url``."""
        return f"https://{user}:{quote(PASSWORD, safe='')}@{self._address}"

    def add_user(self, name: str, role: dict[str, object]) -> None:
        """Create a user with a role of the same name, or give it a different role."""
        plugin_api = "/_plugins/_security/api"
        for path, body in (
            (f"internalusers/{name}", {"password": PASSWORD}),
            (f"roles/{name}", role),
            (f"rolesmapping/{name}", {"users": [name]}),
        ):
            self.owner.transport.perform_request(
                "PUT", f"{plugin_api}/{path}", body=body
            )

    def close(self) -> None:
        """Stop the server."""
        self.owner.close()
        lifecycle.take_down(self._part, self._state)

    def _secured(self, part: Part) -> Part:
        """Return the part with the plugin, its settings, and a probe over TLS."""
        command = list(part.command)
        command[command.index("-cp") + 1] = f"{self._classes()}/*"
        command += ["-pluginTypes", "org.opensearch.security.OpenSearchSecurityPlugin"]
        settings = self._config / "opensearch.yml"
        settings.write_text(_SETTINGS, encoding="utf-8")
        return dataclasses.replace(
            part,
            command=tuple(command),
            probe=self._probe,
            ready_within_s=stretched(part.ready_within_s),
        )

    def _classes(self) -> Path:
        """Collect the archives of the server and of the plugin in a folder."""
        folder = self._state.data("classes")
        folder.mkdir()
        jars = store.read_lock(store.LOCK.with_name(f"{_USE}.lock"))
        assert not store.missing(jars, store.folder()), "make setup-dev fetches them"
        plugin = next(jar for jar in jars if jar.parts[1] == _PLUGIN)
        own = {jar.parts[1] for jar in jars} - {_PLUGIN}
        for jar in jars:
            if jar is not plugin:
                (folder / jar.file).symlink_to(store.folder() / _USE / jar.file)
        users = self._config / _PLUGIN
        with zipfile.ZipFile(store.folder() / _USE / plugin.file) as packed:
            for name in packed.namelist():
                if name.startswith("config/") and name.endswith(".yml"):
                    users.mkdir(exist_ok=True)
                    (users / Path(name).name).write_bytes(packed.read(name))
                elif name.endswith(".jar") and _artifact(name) not in own:
                    packed.extract(name, folder)
        # The plugin's example grants permissions to every user.
        (users / "roles_mapping.yml").write_text(_NO_RIGHTS, encoding="utf-8")
        return folder

    def _probe(self) -> None:
        try:
            self.owner.cluster.health(params={"wait_for_status": "yellow"})
            # The plugin has no users until it has filled its own index.
            self.owner.transport.perform_request(
                "GET", "/_plugins/_security/api/internalusers/admin"
            )
        except OpenSearchException as error:
            raise NotReadyError(str(error)) from error
