"""``[sinks]``: what the drivers of sinks have in common."""

from typing import Annotated

from pydantic import Field

from towpath.settings.section import Section

Port = Annotated[int, Field(ge=0, le=65535)]


class Sinks(Section):
    """
    ``[sinks]``: where each driver tells how its sinks are.

    ``metrics_ports`` gives a driver, by its name, the port of ``/metrics`` on
    ``metrics_host``; a driver that is not named takes a free one and says so in its
    log.
    """

    metrics_host: str = "127.0.0.1"
    metrics_ports: dict[str, Port] = Field(default_factory=dict)
