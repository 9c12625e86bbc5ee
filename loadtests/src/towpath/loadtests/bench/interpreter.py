"""
The running Python: its version, and how it was built.

``deploy/find_python.sh`` runs this file by its path with each Python that it finds, so
it uses only the standard library.
"""

import importlib.util
import platform
import sys
import sysconfig
from pathlib import Path
from typing import Final

SUPPORTED: Final = ((3, 11), (3, 13))
_MODULES: Final = ("ensurepip", "venv")


def describe() -> str:
    """Return the version of this Python, and whether it was built with PGO."""
    return f"{platform.python_version()} {'with' if is_optimized() else 'without'} PGO"


def is_optimized() -> bool:
    """
    Return whether this Python was built with profile-guided optimization (PGO).

    The ``python3`` package of Debian and Ubuntu is built with PGO (``profile-opt`` in
    its rules), but its configuration lacks the ``configure`` option that other builds
    have.
    """
    options = sysconfig.get_config_var("CONFIG_ARGS") or ""
    return (
        "--enable-optimizations" in options
        or "deb_system" in sysconfig.get_scheme_names()
    )


def is_supported() -> bool:
    """Return whether Towpath supports this Python, and whether it can create a venv."""
    modules = (importlib.util.find_spec(name) for name in _MODULES)
    first, last = SUPPORTED
    return first <= sys.version_info[:2] <= last and None not in modules


def has_headers() -> bool:
    """Return whether C code, such as compiled modules, can be built for this Python."""
    return Path(sysconfig.get_path("include"), "Python.h").exists()


def main() -> int:
    """Print this Python's rank (higher is better) and path; return 1 if unsupported."""
    if not is_supported():
        return 1
    # The setup may delete an environment, such as the clone's own, before creating one.
    base = getattr(sys, "_base_executable", sys.executable)
    minor = sys.version_info[1]
    sys.stdout.write(f"{has_headers():d}{is_optimized():d}{minor:02} {base}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
