"""The database's sessions; ``DATABASE_URL`` names it."""

import functools
import os

from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session, sessionmaker


@functools.cache
def engine() -> Engine:
    """Return the engine of this process, with psycopg 3 as its driver."""
    url = make_url(os.environ["DATABASE_URL"])
    return create_engine(url.set(drivername="postgresql+psycopg"))


def sessions() -> sessionmaker[Session]:
    """Return the factory of sessions; each commits at the end of its block."""
    return sessionmaker(engine())
