"""Carries out the upkeep of tables, one at a time; its failure fails no batch."""

import structlog

from towpath.schemas.failure import TowpathError
from towpath.sinks.ports import SqlSession
from towpath.sinks.warehouse.merge import drop_branch
from towpath.sinks.warehouse.opening import newest
from towpath.sinks.warehouse.upkeep import Task, Upkeep, statements
from towpath.sinks.warehouse.writing import Writer

_log = structlog.get_logger("towpath.sinks.warehouse")


def carry_out(session: SqlSession, upkeep: Upkeep, writer: Writer) -> None:
    """Do the upkeep of the table that needs it most, if any does."""
    task = upkeep.due()
    if task is None:
        return
    try:
        for statement in (drop_branch(task.name, writer.branch), *statements(task)):
            session.sql(statement)
        _settle(session, task, upkeep, writer)
    except TowpathError as error:
        # The rows are safe without it; it is due again when the table has grown.
        _log.warning(
            "upkeep failed",
            table=task.name.table,
            error=str(error),
            remedy=error.remedy,
        )
        writer.forget(task.name)
        upkeep.put_off(task)


def _settle(session: SqlSession, task: Task, upkeep: Upkeep, writer: Writer) -> None:
    commit = newest(session, task.name)
    if commit is not None:
        writer.carry_over(task.name, commit)
    upkeep.done(task, {} if commit is None else commit.summary)
    _log.info("table compacted", table=task.name.table)
