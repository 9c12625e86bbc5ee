"""What keeps a benchmark from its end."""

from towpath.schemas.failure import UnavailableError


class BenchError(UnavailableError):
    """A system or a part of the benchmark ended, or was not done in time."""

    remedy = "Read the log that the message names; --keep leaves all logs in place."
