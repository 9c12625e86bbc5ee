"""Checks of ``[kafka.client]``: nothing of TLS and login may be without effect."""

from collections.abc import Iterator

from towpath.settings.brokers import PROTOCOLS, unused, without_counterpart
from towpath.settings.mistakes import did_you_mean
from towpath.settings.model import Settings


def clients_are_secure(settings: Settings) -> Iterator[str]:
    """List what would leave a client without the TLS or the login that is asked for."""
    kafka = settings.kafka
    if kafka.protocol not in PROTOCOLS:
        nearest = did_you_mean(kafka.protocol, PROTOCOLS)
        yield (
            f"kafka.client.security.protocol: {kafka.protocol!r} is none of "
            f"{', '.join(PROTOCOLS)}{nearest}"
        )
        return
    for name in unused(kafka):
        logs_in = kafka.protocol.startswith("SASL") or "sasl" in name
        wanted = "SASL_SSL" if logs_in else "SSL"
        yield (
            f"kafka.client.{name}: has no effect with security.protocol = "
            f"{kafka.protocol}: set security.protocol to {wanted}, or leave it out"
        )


def engine_has_counterparts(settings: Settings) -> Iterator[str]:
    """List what the client of Spark, which reads for the sinks, cannot be told."""
    if settings.sink and settings.kafka.protocol in PROTOCOLS:
        for name in without_counterpart(settings.kafka):
            yield (
                f"kafka.client: {name} has no counterpart in Spark's client, which "
                "reads for the sinks: leave it out (docs/configuration.md)"
            )
