"""Failures of the local stack, the demo, benchmarks, and this package's commands."""

from towpath.schemas.failure import UnavailableError, UsageError


class StateFolderError(UsageError):
    """The state folder cannot be created or written."""

    remedy = "Name a folder that this user can write to (--state or TOWPATH_STATE)."


class PartError(UnavailableError):
    """A part of the local stack did not start, or ended unexpectedly."""

    remedy = "Read the log named above, fix the cause, then run the command again."


class NotReadyError(Exception):
    """The result of a probe: the part is running, but does not serve yet."""


class SourceUnreachableError(UnavailableError):
    """The source database does not answer."""

    remedy = "Start the source (towpath up), or correct source.dsn in towpath.toml."


class SignalRefusedError(UsageError):
    """A signal could not be inserted, or the source has no signal table yet."""

    remedy = "Run towpath relay init first, and give every signal a unique id."


class RelaySilentError(UnavailableError):
    """No relay is consuming the slot, or none has answered a signal in time."""

    remedy = "Start the relay (towpath relay run), or see in its log why it is waiting."


class ConnectorError(UsageError):
    """The file to convert is not the configuration of a Postgres connector."""

    remedy = (
        "Pass the JSON configuration of a Debezium Postgres connector, as Kafka "
        "Connect returns it."
    )


class SinkHeldError(UnavailableError):
    """A sink's driver has not released the sink in time."""

    remedy = "Stop the driver that runs the sink, then drop the sink again."


class DemoRunsError(UsageError):
    """Another demo is running in the same state folder."""

    remedy = "Stop that demo with Ctrl-C, or name another folder with --state."


class NotADemoFolderError(UsageError):
    """The state folder has files that do not belong to a demo."""

    remedy = "With --state, name a folder that is empty or does not exist."


class StepError(UnavailableError):
    """A step of the demo, or of a benchmark on the demo's shop, was not completed."""

    remedy = "Read the logs of the parts, fix the cause, then run the command again."
