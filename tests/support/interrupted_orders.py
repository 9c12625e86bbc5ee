"""
The orders service with interruptions that a test requests; run with ``python -m``.

A request with the header ``Test-Kill`` ends its worker after the commit, before a byte
of the response is sent. Background tasks run without a pause.
"""

import argparse
import os
import signal
import sys
from dataclasses import replace

from flask import Flask, Response, request

from towpath.services.orders.__main__ import ORDERS
from towpath.services.plumbing.server import LIFECYCLE

KILL = "Test-Kill"


def interrupted_app(options: argparse.Namespace) -> Flask:
    """Wire the service, with a hook after each request."""
    app = ORDERS.create_app(options)
    tasks = app.extensions[LIFECYCLE].tasks
    tasks[:] = [task._replace(interval_s=0.05) for task in tasks]

    @app.after_request
    def kill(response: Response) -> Response:
        if KILL in request.headers:
            os.kill(os.getpid(), signal.SIGKILL)
        return response

    return app


if __name__ == "__main__":
    service = replace(ORDERS, create_app=interrupted_app)
    sys.exit(service.main(sys.argv[1:], {}))
