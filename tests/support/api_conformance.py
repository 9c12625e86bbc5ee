"""
Schemathesis on a running service: its answers against its own OpenAPI document.

Requests are generated from the document, valid and invalid ones, by a fixed seed. Every
check of Schemathesis is made on every answer.
"""

import subprocess
import sys
from pathlib import Path

from support.orders_service import Service, environment_with_support
from support.waiting import stretched

SEED = 20261127
TIMEOUT_S = stretched(240.0)


def conformance_report(
    service: Service, folder: Path, hooks: str | None = None, *, examples: int = 20
) -> tuple[int, str]:
    """
    Run every check on every operation of a service.

    Args:
        service: The service, with all that its operations need.
        folder: The working folder of the run.
        hooks: A module of Schemathesis' hooks, which may put real ids into requests.
        examples: The number of generated requests of each operation and phase.

    Returns:
        The exit code, which is zero if all checks passed, and the report.
    """
    environ = environment_with_support(SERVICE_URL=service.url, COLUMNS="120")
    if hooks is not None:
        environ["SCHEMATHESIS_HOOKS"] = hooks
    done = subprocess.run(
        [
            Path(sys.executable).parent / "schemathesis",
            *("run", f"{service.url}/openapi.json"),
            *("--checks", "all", "--seed", str(SEED), "--workers", "1"),
            *("--max-examples", str(examples), "--generation-database", "none"),
            *("--continue-on-failure", "--no-color"),
        ],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    return done.returncode, done.stdout + done.stderr
