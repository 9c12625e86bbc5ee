"""
Run Schemathesis on a service: check its responses against its OpenAPI document.

Valid and invalid requests are generated from the document, with a fixed seed. Every
check of Schemathesis is applied to every response.
"""

import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from schemathesis import GenerationMode
from schemathesis.generation.meta import ParameterLocation

from support.orders_service import Service
from support.waiting import stretched

MAX_LENGTH = 300
MAX_VALUES = 10
SEED = 20261127
TIMEOUT_S = stretched(240.0)


def document_errors(document: dict[str, Any]) -> list[str]:
    """Return the ways in which a document violates OpenAPI 3.1."""
    # The import parses grammars for a second; at the top, every worker would wait.
    from openapi_spec_validator import OpenAPIV31SpecValidator  # noqa: PLC0415

    return [str(error) for error in OpenAPIV31SpecValidator(document).iter_errors()]


def conformance_report(
    service: Service, folder: Path, hooks: str | None = None, *, examples: int = 20
) -> tuple[int, str]:
    """
    Run every check on every operation of a service.

    Args:
        service: The service, with everything that its operations need.
        folder: The working folder of the run.
        hooks: A module of Schemathesis hooks, which may put real ids into requests.
        examples: The number of generated requests per operation and phase.

    Returns:
        The exit code, which is zero if all checks passed, and the report.
    """
    environ = _environment(SERVICE_URL=service.url, COLUMNS="120")
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


def is_valid(case: Any, location: ParameterLocation) -> bool:
    """Return whether the document allows this part of a generated request."""
    component = case.meta.components.get(location)
    return component is None or component.mode is GenerationMode.POSITIVE


def make_sendable(case: Any) -> None:
    """
    Give a generated request an unused key, and a short query.

    The server refuses an overlong request line before any operation sees it.
    """
    if is_valid(case, ParameterLocation.HEADER) and "Idempotency-Key" in case.headers:
        case.headers["Idempotency-Key"] = str(uuid.uuid4())
    case.query = {name: _shortened(value) for name, value in case.query.items()}


def _shortened(value: Any) -> Any:
    """Truncate a string or a list, but leave it too long to be valid."""
    if isinstance(value, list):
        return [_shortened(one) for one in value[:MAX_VALUES]]
    return value[:MAX_LENGTH] if isinstance(value, str) else value


def _environment(**more: str) -> dict[str, str]:
    """Return this process's environment, extended so that ``support`` is importable."""
    inherited = dict(os.environ)  # noqa: TID251 - for a process that the test starts
    paths = [str(Path(__file__).parents[1]), inherited.get("PYTHONPATH", "")]
    search_path = os.pathsep.join(filter(None, paths))
    return {**inherited, "PYTHONPATH": search_path, **more}
