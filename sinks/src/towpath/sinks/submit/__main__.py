"""Runs sinks on the cluster of ``spark-submit``: the arguments are the driver's own."""

import sys

from towpath.sinks.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
