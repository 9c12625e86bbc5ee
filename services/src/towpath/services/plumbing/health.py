"""
Two questions with two answers: does the process live, and can it take orders now.

``/health/live`` asks nothing of anyone. ``/health/ready`` asks the database whether it
answers and has every table that a write needs, the outbox among them.
"""

from collections.abc import Sequence

from flask import Blueprint
from sqlalchemy import Engine, text

from towpath.services.plumbing.database import MissingTableError, translated


def health_blueprint(engine: Engine, tables: Sequence[str]) -> Blueprint:
    """
    Make the two routes.

    Args:
        engine: The database that is asked.
        tables: Qualified names of the tables that a write needs.
    """
    blueprint = Blueprint("health", __name__, url_prefix="/health")
    missing = text(
        "select name from unnest(cast(:names as text[])) as name"
        " where to_regclass(name) is null"
    )

    @blueprint.get("/live")
    def live() -> dict[str, str]:
        return {"status": "live"}

    @blueprint.get("/ready")
    def ready() -> dict[str, str]:
        with translated(), engine.connect() as connection:
            absent = connection.scalars(missing, {"names": list(tables)}).all()
        if absent:
            message = f"There is no table {', '.join(absent)} yet."
            raise MissingTableError(message)
        return {"status": "ready"}

    return blueprint
