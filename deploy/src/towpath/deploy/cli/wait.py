"""``towpath wait --lsn LSN --sink NAME``."""

import json as json_text
import os
from typing import Annotated

from cyclopts import Parameter

from towpath.deploy.cli.places import ConfigOption, config_file
from towpath.settings import load
from towpath.settings.logs import configure_logs


def wait(
    *,
    lsn: str,
    sink: str,
    timeout: Annotated[float, Parameter(name="--timeout")] = 60.0,
    json: Annotated[bool, Parameter(negative="")] = False,
    config: ConfigOption = None,
) -> int:
    """
    Wait until a sink has applied a commit, so that one's own write can be read there.

    The LSN is one at or behind the commit's end: the header Towpath-Lsn of a service's
    answer, or pg_current_wal_flush_lsn() read after the commit. Exit 1 if the sink has
    not applied it in time, 3 if the source or Kafka does not answer.

    Args:
        lsn: As Postgres writes it, such as 0/16B3748.
        sink: The sink's name in the configuration.
        timeout: How many seconds to wait at most.
        json: Print one JSON document.
        config: Configuration file.
    """
    from towpath.sinks.wait import Waiter  # noqa: PLC0415 - keeps --help fast
    from towpath.sinks.wait.errors import NotAppliedError  # noqa: PLC0415 - the same

    configure_logs()
    settings = load(config_file(config), os.environ)  # noqa: TID251 - a root
    try:
        with Waiter(settings) as waiter:
            applied = waiter.wait_for(lsn, sink, timeout)
    except NotAppliedError as error:
        if not json:
            raise
        told = {"sink": sink, "lsn": lsn, "applied": False, "missing": str(error)}
        print(json_text.dumps(told))
        return error.exit_code
    if json:
        told = applied._asdict() | {"lsn": lsn, "applied": True}
        print(json_text.dumps(told))
        return 0
    print(f"{sink} has applied {lsn}, after {applied.waited_s:.3f} s")
    if applied.parked:
        print(f"{applied.parked:,} keys are parked: towpath dead-letters list")
    return 0
