"""Sessions with the database that ``DATABASE_URL`` names."""

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
    """Return the session factory; a ``begin`` block commits when it ends."""
    return sessionmaker(engine())
