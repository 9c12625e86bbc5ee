"""
OpenSearch: one node, started by the runner that its test suites use.

The runner takes HTTP ports up to 9299 only and ends silently beyond. Its common
analysis module is left out, because it needs Thai dictionaries that a Java runtime from
a Python package does not have: the standard tokenizer and ``lowercase`` are there,
stemming is not.
"""

import secrets
from collections.abc import Collection
from pathlib import Path
from typing import Final

from towpath.deploy import java
from towpath.deploy.errors import NotReadyError
from towpath.deploy.jars import store
from towpath.deploy.local.part import RECOVERS_WITHIN_S, Part, StateFolder
from towpath.deploy.local.ports import LOOPBACK, free_within, get_json

PORTS: Final = (9201, 9299)
_HEAP_MB: Final = 384
_MODULES: Final = (
    "org.opensearch.search.aggregations.matrix.MatrixAggregationModulePlugin",
    "org.opensearch.script.mustache.MustacheModulePlugin",
    "org.opensearch.painless.PainlessModulePlugin",
    "org.opensearch.index.mapper.MapperExtrasModulePlugin",
    "org.opensearch.join.ParentJoinModulePlugin",
    "org.opensearch.index.reindex.ReindexModulePlugin",
    "org.opensearch.transport.Netty4ModulePlugin",
)


def free_port(taken: Collection[int] = ()) -> int:
    """Return a free port of those that the runner takes, and nobody was given."""
    return free_within(*PORTS, secrets.randbelow(PORTS[1] - PORTS[0]), taken)


def part(state: StateFolder, port: int) -> Part:
    """Describe the OpenSearch part."""
    folder = state.data("opensearch")
    # Two stacks whose nodes see each other must not become one cluster.
    cluster = f"towpath-{state.name}"
    return Part(
        name="opensearch",
        command=(
            str(java.home() / "bin" / "java"),
            *java.server(_HEAP_MB, store.folder() / "opensearch.jsa"),
            "--enable-native-access=ALL-UNNAMED",
            *("-cp", f"{store.folder() / 'opensearch'}/*"),
            "org.codelibs.opensearch.runner.OpenSearchRunner",
            *("-numOfNode", "1", "-basePath", str(folder / "data")),
            # The runner's node n listens on the base port and n.
            *("-clusterName", cluster, "-baseHttpPort", str(port - 1)),
            *("-moduleTypes", ",".join(_MODULES)),
        ),
        folder=folder,
        env={"LC_ALL": "C.UTF-8"},
        port=port,
        prepare=lambda: _prepare(folder),
        probe=lambda: ask(port, cluster),
        recovers_within_s=RECOVERS_WITHIN_S,
    )


def _prepare(folder: Path) -> None:
    store.of("opensearch")
    folder.mkdir(parents=True, exist_ok=True)


def ask(port: int, cluster: str) -> None:
    """
    Ask for the health of the cluster.

    Raises:
        NotReadyError: Some primary shard is not there yet, or another cluster answers.
    """
    health = get_json(
        f"http://{LOOPBACK}:{port}/_cluster/health?wait_for_status=yellow&timeout=2s"
    )
    if health.get("cluster_name") != cluster:
        message = f"port {port} belongs to the cluster {health.get('cluster_name')}"
        raise NotReadyError(message)
    if health.get("timed_out") or health.get("status") not in {"yellow", "green"}:
        message = f"the cluster is {health.get('status')}"
        raise NotReadyError(message)
