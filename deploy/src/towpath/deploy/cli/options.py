"""Options that several commands share: the configuration and the state folder."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

StateOption = Annotated[
    Path | None,
    Parameter(name="--state", help="State folder [TOWPATH_STATE, else .towpath]."),
]
ConfigOption = Annotated[
    Path | None,
    Parameter(
        name="--config", help="Configuration [TOWPATH_CONFIG, else towpath.toml]."
    ),
]


def state_folder(named: Path | None, environ: Mapping[str, str] | None = None) -> Path:
    """Return the state folder: as named, else ``TOWPATH_STATE``, else ``.towpath``."""
    variables = os.environ if environ is None else environ  # noqa: TID251 - asked once, here
    return named or Path(variables.get("TOWPATH_STATE") or ".towpath")


def config_file(named: Path | None, environ: Mapping[str, str] | None = None) -> Path:
    """
    Return the configuration file.

    As named, else ``TOWPATH_CONFIG``, else ``towpath.toml`` here, else the one that
    ``towpath up`` wrote into the state folder.
    """
    variables = os.environ if environ is None else environ  # noqa: TID251 - asked once, here
    if named is not None:
        return named
    if variables.get("TOWPATH_CONFIG"):
        return Path(variables["TOWPATH_CONFIG"])
    here = Path("towpath.toml")
    return here if here.exists() else state_folder(None, variables) / "towpath.toml"
