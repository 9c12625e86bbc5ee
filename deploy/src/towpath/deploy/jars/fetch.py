"""
Bring the store up to its lock: fetch what is missing, check it, put it in place.

Safe to interrupt and to repeat: what was fetched whole is kept in a work folder until
everything is there. One at a time works on a store; another waits.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from towpath.deploy import java
from towpath.deploy.errors import JarsError
from towpath.deploy.jars import ivy, maven, store, trust
from towpath.deploy.jars.lock import Jar

_MEGABYTE: Final = 1_000_000
_TELL_EVERY_S: Final = 2.0
_SHOWN_CHARACTERS: Final = 1_500

Tell = Callable[[str], None]


def ensure(tell: Tell, environ: Mapping[str, str], jars: Sequence[Jar]) -> int:
    """
    Fetch what the store lacks and return how many archives that were.

    Args:
        tell: Is given lines on how it goes.
        environ: Where ``PATH``, ``SSL_CERT_FILE`` and ``TOWPATH_JARS`` are looked up.
        jars: The lock.

    Raises:
        JarsError: Some archive could not be had with the bytes that the lock names.
    """
    place = store.folder(environ)
    if not store.missing(jars, place):
        return 0
    place.parent.mkdir(parents=True, exist_ok=True)
    with _locked(place.parent / "lock", tell):
        wanted = store.missing(jars, place)
        if not wanted:
            return 0
        work = place.parent / f"{place.name}.fetch"
        _fetch(wanted, work, tell, environ)
        for jar in wanted:
            store.put(jar, maven.repository(work) / jar.repository_path, place)
        shutil.rmtree(work)
        return len(wanted)


def _fetch(
    jars: Sequence[Jar], work: Path, tell: Tell, environ: Mapping[str, str]
) -> None:
    """Try Maven, then Ivy, until the work folder holds everything, checked."""
    work.mkdir(parents=True, exist_ok=True)
    why = ""
    left = _unchecked(jars, work)
    for way in [*([_by_maven] if _maven(environ) else []), _by_ivy]:
        if not left:
            return
        total = sum(jar.size_bytes for jar in left) / _MEGABYTE
        word = "Maven" if way is _by_maven else "Ivy"
        tell(f"fetching {len(left)} Java archives, {total:.0f} MB, with {word}")
        with _telling(left, work, tell):
            why = way(left, work, environ) or why
        left = _unchecked(left, work)
    if left:
        message = (
            f"{len(left)} archives could not be fetched, {left[0].coordinate} first"
        )
        raise JarsError(f"{message}\n{why}" if why else message)


def _unchecked(jars: Sequence[Jar], work: Path) -> list[Jar]:
    """Return what is not there or not as the lock says; wrong bytes are removed."""
    left = []
    for jar in jars:
        path = maven.repository(work) / jar.repository_path
        if not store.check(jar, path):
            # Maven and Ivy believe in what lies there, marks of failure included.
            shutil.rmtree(path.parent, ignore_errors=True)
            left.append(jar)
    return left


def _maven(environ: Mapping[str, str]) -> str | None:
    return shutil.which("mvn", path=environ.get("PATH"))


def _by_maven(jars: Sequence[Jar], work: Path, environ: Mapping[str, str]) -> str:
    env = dict(environ)
    flags = _trust_flags(work, environ)
    if flags and "trustStore" not in env.get("MAVEN_OPTS", ""):
        env["MAVEN_OPTS"] = " ".join([env.get("MAVEN_OPTS", ""), *flags])
    if "JAVA_HOME" not in env and shutil.which("java", path=env.get("PATH")) is None:
        env["JAVA_HOME"] = str(java.home(environ))
    program = _maven(environ) or "mvn"
    return _run([maven.command(program, jars, work)], work, env)


def _by_ivy(jars: Sequence[Jar], work: Path, environ: Mapping[str, str]) -> str:
    program = java.home(environ) / "bin" / "java"
    for cache in work.glob("ivy-*"):
        shutil.rmtree(cache)
    flags = _trust_flags(work, environ)
    return _run(ivy.commands(program, flags, jars, work), work, dict(environ))


def _trust_flags(work: Path, environ: Mapping[str, str]) -> list[str]:
    named = environ.get("SSL_CERT_FILE")
    return trust.java_flags(Path(named), work / "trust.p12") if named else []


def _run(commands: list[list[str]], work: Path, env: dict[str, str]) -> str:
    """Run commands at once and return what failed ones said; nobody outlives this."""
    running = []
    try:
        for number, words in enumerate(commands):
            with (work / f"log-{number}").open("wb") as log:
                running.append(
                    subprocess.Popen(  # noqa: S603 - commands are our own
                        words,
                        cwd=work,
                        env=env,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        codes = [process.wait() for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    failed = [number for number, code in enumerate(codes) if code != 0]
    return "\n".join(_end_of(work / f"log-{number}") for number in failed[:1])


def _end_of(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    return text[-_SHOWN_CHARACTERS:].strip()


@contextlib.contextmanager
def _telling(jars: Sequence[Jar], work: Path, tell: Tell) -> Iterator[None]:
    """Tell how many bytes have come, as long as the block lasts."""
    ending = threading.Event()
    total = sum(jar.size_bytes for jar in jars)
    before = _fetched_bytes(work)

    def report() -> None:
        while not ending.wait(_TELL_EVERY_S):
            here = min(total, _fetched_bytes(work) - before)
            tell(f"  {here / _MEGABYTE:.0f} of {total / _MEGABYTE:.0f} MB")

    reporter = threading.Thread(target=report, name="fetch-progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        ending.set()
        reporter.join()


def _fetched_bytes(work: Path) -> int:
    """Add up what has come, unfinished files included and copies left out."""
    total = 0
    for folder, _, names in os.walk(work):
        if "/ivy-" in folder and "/cache" not in folder:
            continue
        for name in names:
            if ".jar" in name or ".tar.gz" in name:
                with contextlib.suppress(OSError):
                    total += (Path(folder) / name).stat().st_size
    return total


@contextlib.contextmanager
def _locked(path: Path, tell: Tell) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("waiting for another fetch of the Java archives")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
