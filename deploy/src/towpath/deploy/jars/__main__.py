"""
``python -m towpath.deploy.jars``: bring the Java archives up to their lock.

Further locks that nobody needs for running are named by their words: ``jdbcsink``,
``objectstore``, ``postgres15``.
"""

import os
import sys

from towpath.deploy.errors import JarsError
from towpath.deploy.jars import fetch, lock, store


def main() -> int:
    """Fetch what is missing and return an exit code."""
    environ = os.environ  # noqa: TID251 - a root
    further = [lock.LOCK.with_name(f"{word}.lock") for word in sys.argv[1:]]
    jars = [jar for path in (lock.LOCK, *further) for jar in lock.read(path)]
    if not store.missing(jars, store.folder(environ)):
        return 0
    try:
        count = fetch.ensure(_tell, environ, jars)
    except JarsError as error:
        print(f"error: {error}\nremedy: {error.remedy}", file=sys.stderr)
        return error.exit_code
    _tell(f"{count} Java archives are in place, their sha256 checked")
    return 0


def _tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
