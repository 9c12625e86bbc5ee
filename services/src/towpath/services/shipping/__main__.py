"""
The shipping service as a process: ``serve``, ``consume`` or ``migrate``.

``serve``, the default, migrates the tables, registers the event schemas and listens;
``consume`` handles the events of orders. Every option has an environment variable, such
as ``SHIPPING_DSN`` and ``SHIPPING_PORT``.
"""

import os
import sys
from typing import Final

from towpath.services.plumbing.service import Service
from towpath.services.shipping.app import (
    CONSUMING,
    create_app,
    event_schemas,
    migrate_shipping,
)

SHIPPING: Final = Service(
    name="shipping",
    description=__doc__,
    prefix="SHIPPING",
    migrate=migrate_shipping,
    event_schemas=event_schemas,
    create_app=lambda options: create_app(options.dsn, threads=options.threads),
    consuming=lambda _options: CONSUMING,
)

if __name__ == "__main__":
    # Only entry points read the environment.
    sys.exit(SHIPPING.main(sys.argv[1:], os.environ))  # noqa: TID251
