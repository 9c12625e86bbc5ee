"""What keeps a chaos run from its end."""

from towpath.schemas.failure import UnavailableError


class ChaosError(UnavailableError):
    """A part of the run could not be started, asked or read."""

    remedy = "Read the log that the message names; --keep leaves all logs in place."
