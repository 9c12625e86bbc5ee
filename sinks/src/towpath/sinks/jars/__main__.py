"""
``python -m towpath.sinks.jars``: fetch the Java archives that the lock names.

Further locks, which the local stack does not need, can be given as arguments: ``s3``
for a warehouse in an object store; others, such as ``jdbcsink`` and ``objectstore``,
for tests and benchmarks.
"""

import argparse
import os
import sys

from towpath.schemas.failure import TowpathError
from towpath.sinks.jars import fetch, store


def main() -> int:
    """Fetch missing archives and return an exit code."""
    environ = os.environ  # noqa: TID251 - a root
    parser = argparse.ArgumentParser(prog="towpath.sinks.jars", description=__doc__)
    parser.add_argument("locks", nargs="*", help="further locks", metavar="LOCK")
    parser.add_argument(
        "--only", action="append", help="fetch only the archives of this use [all]"
    )
    wanted = parser.parse_args()
    locks = {path.stem: path for path in store.LOCK.parent.glob("*.lock")}
    for name in wanted.locks:
        if name not in locks:
            known = ", ".join(sorted(locks))
            parser.error(f"there is no lock {name} (locks: {known})")
    further = (locks[name] for name in wanted.locks)
    jars = [jar for path in (store.LOCK, *further) for jar in store.read_lock(path)]
    if wanted.only:
        uses = {jar.use for jar in jars}
        for use in wanted.only:
            if use not in uses:
                known = ", ".join(sorted(uses))
                parser.error(f"unknown use {use} (uses: {known})")
        jars = [jar for jar in jars if jar.use in wanted.only]
    try:
        if not store.missing(jars, store.folder(environ)):
            return 0
        count = fetch.ensure(_print, environ, jars)
    except TowpathError as error:
        print(f"error: {error}\nremedy: {error.remedy}", file=sys.stderr)
        return error.exit_code
    _print(f"{count} Java archives fetched, their sha256 verified")
    return 0


def _print(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
