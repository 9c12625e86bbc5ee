"""What keeps the demo from being carried out."""

from towpath.schemas.failure import UnavailableError, UsageError


class DemoRunsError(UsageError):
    """Another demo works in the same state folder."""

    remedy = "End it with Ctrl-C where it runs, or name another folder with --state."


class NotADemoFolderError(UsageError):
    """The state folder holds something that no demo has put there."""

    remedy = "Name a folder that is empty or does not exist with --state."


class StepError(UnavailableError):
    """A part of the demo did not do in time what the next step needs."""

    remedy = "Read the log named above, mend the cause, then run towpath demo again."
