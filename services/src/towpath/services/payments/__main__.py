"""
The payments service as a process: ``serve``, ``consume`` or ``migrate``.

``serve``, the default, migrates the tables, registers the event schemas and listens;
``consume`` consumes the orders' events, and calls the payment provider. Every option
has an environment variable, such as ``PAYMENTS_DSN`` and ``PAYMENTS_PORT``.
"""

import os
import sys
from typing import Final

from towpath.services.payments.app import (
    CONSUMING,
    create_app,
    event_schemas,
    migrate_payments,
)
from towpath.services.plumbing.service import Service

PAYMENTS: Final = Service(
    name="payments",
    description=__doc__,
    prefix="PAYMENTS",
    migrate=migrate_payments,
    event_schemas=event_schemas,
    create_app=lambda options: create_app(options.dsn, threads=options.threads),
    consuming=lambda _options: CONSUMING,
)

if __name__ == "__main__":
    # Only entry points read the environment.
    sys.exit(PAYMENTS.main(sys.argv[1:], os.environ))  # noqa: TID251
