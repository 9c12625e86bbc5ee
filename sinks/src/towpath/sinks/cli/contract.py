"""``towpath schema contract``: what a migration does to row topics and sinks."""

import json as json_text
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from towpath.cli.options import ConfigOption, JsonOption, read_settings
from towpath.schemas.failure import UsageError
from towpath.sinks.contracts.evaluate import evaluate
from towpath.sinks.contracts.findings import ContractFinding, Level, accepted
from towpath.sinks.contracts.scratch import AlembicRange, Step, compare, sql_files


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class _ScratchOptions:
    """
    The scratch database, and how the schema gets there.

    Attributes:
        dsn: A Postgres where a scratch database may be created.
        schema: An SQL file of the schema before the migration. May be given several
            times, and runs before the revisions of Alembic.
        alembic: The revisions START:END, such as 0007:0008 or base:head.
        alembic_config: Alembic's configuration file.
        url_variable: The environment variable that gives Alembic's env.py the database.
        python: The application's Python, which runs Alembic; left out, this one.
    """

    dsn: Annotated[str, Parameter(env_var="TOWPATH_SCRATCH_DSN")]
    schema: Annotated[tuple[Path, ...], Parameter(negative="")] = ()
    alembic: str | None = None
    alembic_config: Path = Path("alembic.ini")
    url_variable: str = "DATABASE_URL"
    python: str | None = None

    def steps(self, migrations: Sequence[Path]) -> tuple[Step, Step]:
        """
        Return the step that makes the schema, and the one that migrates it.

        Raises:
            UsageError: No migration is named, or its range has no start.
        """
        files = sql_files(self.schema)
        if self.alembic is None:
            if not migrations:
                message = "name the migration: SQL files, or --alembic START:END"
                raise UsageError(message)
            return files, sql_files(migrations)
        start, _, end = self.alembic.partition(":")
        if migrations or not start or not end:
            message = "--alembic takes a range START:END, and no SQL files beside it"
            raise UsageError(message)
        revisions = AlembicRange(
            *(start, end, self.alembic_config),
            *(self.python or sys.executable, self.url_variable),
        )

        def before(dsn: str) -> None:
            files(dsn)
            revisions.before(dsn)

        return before, revisions.migrate


def contract(
    *migrations: Path,
    scratch: _ScratchOptions,
    accept: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Judge a migration for row topics and sinks; exit 1 if it is refused.

    The schema before the migration is made in a scratch database, the migration is
    applied to it, and the catalogs before and after are compared. No sink is contacted.

    Args:
        migrations: SQL files of the migration, in their order.
        scratch: The scratch database.
        accept: A table (shop.orders) or a column (shop.orders.note) that may be
            refused. May be given several times.
        json: Print one JSON document.
        config: Configuration file.
    """
    settings = read_settings(config)
    found = evaluate(*compare(scratch.dsn, *scratch.steps(migrations)), settings)
    refused = {one.name for one in found if one.level is Level.REFUSED}
    unknown = sorted(set(accept) - refused)
    if unknown:
        message = f"nothing is refused of {', '.join(unknown)}: leave --accept out"
        raise UsageError(message)
    found = accepted(found, accept)
    is_refused = bool(refused.difference(accept))
    if json:
        document = {"refused": is_refused, "findings": [asdict(one) for one in found]}
        print(json_text.dumps(document, indent=1, ensure_ascii=False))
    else:
        _print(found)
    return int(is_refused)


def _print(found: Sequence[ContractFinding]) -> None:
    for one in found:
        print(f"{one.level}: {one.name}: {one.change} ({one.place})")
        print(f"  {one.sentence}")
        for number, step in enumerate(one.steps, start=1):
            print(f"  {number}. {step}")
    counted = Counter(one.level for one in found)
    summary = ", ".join(
        f"{counted[level]} {level}" for level in Level if counted[level]
    )
    print(summary or "no captured table is changed")
