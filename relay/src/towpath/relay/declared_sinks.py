"""
The sinks that the configuration declares, read when a signal names one.

A sink may be declared while the relay runs; that needs no restart.
"""

from collections.abc import Mapping
from pathlib import Path

import structlog

from towpath.schemas.failure import ConfigurationError
from towpath.settings import Settings, load

_LOG = structlog.get_logger("towpath.relay")


class DeclaredSinks:
    """Names the declared sinks as of each call."""

    def __init__(
        self, config: Path, environ: Mapping[str, str], settings: Settings
    ) -> None:
        self._config = config
        self._environ = environ
        self._names = _names(settings)

    def __call__(self) -> frozenset[str]:
        """Return the sinks' names; those of before if the file has a mistake now."""
        try:
            self._names = _names(load(self._config, self._environ))
        except ConfigurationError as error:
            _LOG.warning(
                "the configuration cannot be read: sinks are those of before",
                reason=str(error),
                remedy=error.remedy,
            )
        return self._names


def _names(settings: Settings) -> frozenset[str]:
    return frozenset(sink.name for sink in settings.sink)
