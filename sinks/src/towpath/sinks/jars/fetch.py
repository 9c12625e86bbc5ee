"""
Fetch the archives that the store lacks, check them and put them in place.

A fetch may be interrupted and repeated: complete archives are kept in a work folder
until all archives are fetched. One process at a time changes a store; others wait.

- Maven, where it is installed, fetches many files at once. Each use is a separate
  module, because uses need different versions of one artifact. Every archive is named,
  and its dependencies are excluded: the lock lists them all.
- The Ivy bundled with PySpark fetches the rest. It needs only a Java runtime, and
  fetches one file after another, so several processes share the work, each with its
  own cache. Checksums are off, because the lock's sha256 is checked afterwards.
- Java has its own list of certificate authorities. The certificates of
  ``SSL_CERT_FILE`` are written as a trust store that Java reads.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import (
    PKCS12Certificate,
    serialize_java_truststore,
)

from towpath.sinks.errors import JarsError
from towpath.sinks.jars import java, store
from towpath.sinks.jars.store import Jar

_MAVEN_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_MAVEN_PROJECT: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
 <modelVersion>4.0.0</modelVersion>
 <groupId>towpath</groupId><artifactId>{name}</artifactId><version>1</version>
 <packaging>pom</packaging>
 {content}
</project>
"""
_MAVEN_DEPENDENCY: Final = """\
 <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>
  <version>{version}</version><type>{kind}</type>{classifier}
  <exclusions><exclusion>
   <groupId>*</groupId><artifactId>*</artifactId>
  </exclusion></exclusions></dependency>
"""


def maven_command(program: str, jars: Sequence[Jar], work: Path) -> list[str]:
    """Write a Maven project for the archives and return the command to fetch them."""
    project = work / "project"
    uses = sorted({jar.use for jar in jars})
    for use in uses:
        content = "".join(_maven_dependency(jar) for jar in jars if jar.use == use)
        _write_project(project / use, use, f"<dependencies>\n{content}</dependencies>")
    modules = "".join(f"<module>{use}</module>" for use in uses)
    _write_project(project, "jars", f"<modules>{modules}</modules>")
    return [
        *(program, "--batch-mode", "--errors", "--fail-at-end"),
        *("--file", str(project / "pom.xml")),
        # A separate repository: Maven runs of two clones must not share one.
        f"-Dmaven.repo.local={repository(work)}",
        "-Dmaven.artifact.threads=16",
        f"{_MAVEN_PLUGIN}:resolve",
    ]


def repository(work: Path) -> Path:
    """Return the folder of fetched files, laid out as a Maven repository."""
    return work / "repository"


def _maven_dependency(jar: Jar) -> str:
    group, artifact, version, kind, classifier = map(escape, jar.parts)
    named = f"<classifier>{classifier}</classifier>" if classifier else ""
    return _MAVEN_DEPENDENCY.format(
        group=group, artifact=artifact, version=version, kind=kind, classifier=named
    )


def _write_project(folder: Path, name: str, content: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = _MAVEN_PROJECT.format(name=name, content=content)
    (folder / "pom.xml").write_text(text, encoding="utf-8")


# The processes mostly wait for the network; more of them would gain little.
IVY_PROCESSES: Final = 4
_IVY_SETTINGS: Final = """\
<ivysettings>
 <settings defaultResolver="public"/>
 <resolvers>
  <ibiblio name="public" m2compatible="true" usepoms="false"
   useMavenMetadata="false" checksums=""/>
 </resolvers>
</ivysettings>
"""
_IVY_MODULE: Final = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
 <info organisation="towpath" module="jars" revision="1"/>
 <configurations>{configurations}</configurations>
 <dependencies>
{dependencies} </dependencies>
</ivy-module>
"""
_IVY_DEPENDENCY: Final = """\
  <dependency org={group} name={artifact} rev={version} conf={conf} transitive="false">
   <artifact name={artifact} type={kind} ext={kind}{classifier}/></dependency>
"""
_IVY_LAYOUT: Final = (
    "[orgPath]/[module]/[revision]/[artifact]-[revision](-[classifier]).[ext]"
)


def ivy_commands(
    java: Path, flags: Sequence[str], jars: Sequence[Jar], work: Path
) -> list[list[str]]:
    """Divide the archives by size and return the commands to fetch them."""
    shares: list[list[Jar]] = [[] for _ in range(IVY_PROCESSES)]
    for jar in sorted(jars, key=lambda jar: -jar.size_bytes):
        min(shares, key=lambda s: sum(j.size_bytes for j in s)).append(jar)
    return [
        _ivy_command(java, flags, share, work / f"ivy-{number}", repository(work))
        for number, share in enumerate(shares)
        if share
    ]


def _ivy_command(
    java: Path, flags: Sequence[str], jars: Sequence[Jar], folder: Path, target: Path
) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    confs = [f"c{number}" for number in range(len(jars))]
    # One configuration per archive: each can hold only one version of a module.
    text = _IVY_MODULE.format(
        configurations="".join(f'<conf name="{conf}"/>' for conf in confs),
        dependencies="".join(map(_ivy_dependency, jars, confs)),
    )
    (folder / "ivy.xml").write_text(text, encoding="utf-8")
    settings = folder / "settings.xml"
    settings.write_text(_IVY_SETTINGS, encoding="utf-8")
    return [
        *(str(java), *flags, f"-Divy.default.ivy.user.dir={folder / 'user'}"),
        *("-jar", str(_ivy_program()), "-warn", "-settings", str(settings)),
        *("-ivy", str(folder / "ivy.xml"), "-cache", str(folder / "cache")),
        *("-types", "jar", "tar.gz", "-confs", *confs),
        *("-retrieve", f"{target}/{_IVY_LAYOUT}"),
    ]


def _ivy_dependency(jar: Jar, conf: str) -> str:
    group, artifact, version, kind, classifier = map(quoteattr, jar.parts)
    return _IVY_DEPENDENCY.format(
        group=group,
        artifact=artifact,
        version=version,
        conf=quoteattr(f"{conf}->default"),
        kind=kind,
        classifier=f" m:classifier={classifier}" if jar.parts[-1] else "",
    )


def _ivy_program() -> Path:
    spec = find_spec("pyspark")
    origin = Path(spec.origin) if spec and spec.origin else Path("/")
    for found in sorted(origin.parent.glob("jars/ivy-*.jar")):
        return found
    message = "neither Maven nor PySpark's Ivy is installed"
    raise JarsError(message)


# A trust store needs a password although its content is public.
_TRUST_STORE_PASSWORD: Final = "changeit"  # noqa: S105 - Java's own default
_CERTIFICATE: Final = re.compile(
    rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL
)


def trust_store_flags(certificates: Path, store: Path) -> list[str]:
    """
    Write the trust store and return Java's flags for it.

    Raises:
        JarsError: The file has no certificates, or cannot be read.
    """
    try:
        text = certificates.read_bytes()
    except OSError as error:
        message = f"SSL_CERT_FILE: {certificates} cannot be read: {error.strerror}"
        raise JarsError(message) from error
    found = [PKCS12Certificate(c, None) for c in _read_certificates(text)]
    if not found:
        message = f"SSL_CERT_FILE: {certificates} has no certificate in PEM format"
        raise JarsError(message)
    encryption = BestAvailableEncryption(_TRUST_STORE_PASSWORD.encode())
    store.write_bytes(serialize_java_truststore(found, encryption))
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        f"-Djavax.net.ssl.trustStorePassword={_TRUST_STORE_PASSWORD}",
        "-Djavax.net.ssl.trustStoreType=PKCS12",
    ]


def _read_certificates(text: bytes) -> list[x509.Certificate]:
    certificates = []
    with warnings.catch_warnings():
        # Some old certificates break rules that later releases of the library enforce.
        warnings.simplefilter("ignore")
        for block in _CERTIFICATE.findall(text):
            try:
                certificates.append(x509.load_pem_x509_certificate(block))
            except ValueError:
                continue
    return certificates


_MEGABYTE: Final = 1_000_000
_REPORT_EVERY_S: Final = 2.0
_SHOWN_CHARACTERS: Final = 1_500

ReportLine = Callable[[str], None]


def ensure(report: ReportLine, environ: Mapping[str, str], jars: Sequence[Jar]) -> int:
    """
    Fetch the archives that the store lacks and return their number.

    Args:
        report: Called with lines about the progress.
        environ: Environment with ``PATH``, ``SSL_CERT_FILE`` and ``TOWPATH_JARS``.
        jars: The wanted archives, as the lock lists them.

    Raises:
        JarsError: An archive could not be fetched or stored, or does not match the
            lock.
        PrerequisiteError: There is no Java to fetch them with.
    """
    folder = store.folder(environ)
    if not store.missing(jars, folder):
        return 0
    try:
        return _ensure(report, environ, jars, folder)
    except OSError as error:
        message = f"the archives cannot be fetched into {folder}: {error}"
        raise JarsError(message) from error


def _ensure(
    report: ReportLine, environ: Mapping[str, str], jars: Sequence[Jar], folder: Path
) -> int:
    """Fetch the missing archives while no other process changes the store."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / "lock", report):
        wanted = store.missing(jars, folder)
        if not wanted:
            return 0
        work = folder.parent / f"{folder.name}.fetch"
        _fetch(wanted, work, report, environ)
        for jar in wanted:
            store.put(jar, repository(work) / jar.repository_path, folder)
        shutil.rmtree(work)
        return len(wanted)


def _fetch(
    jars: Sequence[Jar], work: Path, report: ReportLine, environ: Mapping[str, str]
) -> None:
    """Try Maven, then Ivy, until the work folder holds all archives, checked."""
    work.mkdir(parents=True, exist_ok=True)
    why = ""
    left = _unchecked(jars, work)
    for fetch in [*([_by_maven] if _maven_program(environ) else []), _by_ivy]:
        if not left:
            return
        total = sum(jar.size_bytes for jar in left) / _MEGABYTE
        tool = "Maven" if fetch is _by_maven else "Ivy"
        report(f"fetching {len(left)} Java archives, {total:.0f} MB, with {tool}")
        with _reporting(left, work, report):
            why = fetch(left, work, environ) or why
        left = _unchecked(left, work)
    if left:
        message = (
            f"{len(left)} archives could not be fetched, including {left[0].coordinate}"
        )
        raise JarsError(f"{message}\n{why}" if why else message)


def _unchecked(jars: Sequence[Jar], work: Path) -> list[Jar]:
    """
    Return archives that are missing or differ from the lock; delete their folders.

    Archives that share a folder, because they differ only in their classifier, are
    returned together.
    """
    paths = {jar: repository(work) / jar.repository_path for jar in jars}
    bad = {path.parent for jar, path in paths.items() if not store.check(jar, path)}
    for folder in bad:
        # Maven and Ivy trust existing files, including their own failure markers.
        shutil.rmtree(folder, ignore_errors=True)
    return [jar for jar, path in paths.items() if path.parent in bad]


def _maven_program(environ: Mapping[str, str]) -> str | None:
    return shutil.which("mvn", path=environ.get("PATH"))


def _by_maven(jars: Sequence[Jar], work: Path, environ: Mapping[str, str]) -> str:
    env = dict(environ)
    flags = _trust_flags(work, environ)
    if flags and "trustStore" not in env.get("MAVEN_OPTS", ""):
        env["MAVEN_OPTS"] = " ".join([env.get("MAVEN_OPTS", ""), *flags])
    if "JAVA_HOME" not in env and shutil.which("java", path=env.get("PATH")) is None:
        env["JAVA_HOME"] = str(java.home(environ))
    program = _maven_program(environ) or "mvn"
    return _run([maven_command(program, jars, work)], work, env)


def _by_ivy(jars: Sequence[Jar], work: Path, environ: Mapping[str, str]) -> str:
    program = java.home(environ) / "bin" / "java"
    for cache in work.glob("ivy-*"):
        shutil.rmtree(cache)
    flags = _trust_flags(work, environ)
    return _run(ivy_commands(program, flags, jars, work), work, dict(environ))


def _trust_flags(work: Path, environ: Mapping[str, str]) -> list[str]:
    named = environ.get("SSL_CERT_FILE")
    return trust_store_flags(Path(named), work / "trust.p12") if named else []


def _run(commands: list[list[str]], work: Path, env: dict[str, str]) -> str:
    """
    Run commands in parallel; return the end of the output of the first failed one.

    No command outlives the call, even if it raises.
    """
    running = []
    try:
        for number, command in enumerate(commands):
            with (work / f"log-{number}").open("wb") as log:
                running.append(
                    subprocess.Popen(  # noqa: S603 - commands are our own
                        command,
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
def _reporting(jars: Sequence[Jar], work: Path, report: ReportLine) -> Iterator[None]:
    """Report the number of fetched bytes during the block."""
    ending = threading.Event()
    total = sum(jar.size_bytes for jar in jars)
    before = _fetched_bytes(work)

    def run() -> None:
        while not ending.wait(_REPORT_EVERY_S):
            here = min(total, _fetched_bytes(work) - before)
            report(f"  {here / _MEGABYTE:.0f} of {total / _MEGABYTE:.0f} MB")

    reporter = threading.Thread(target=run, name="fetch-progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        ending.set()
        reporter.join()


def _fetched_bytes(work: Path) -> int:
    """Count the fetched bytes, including unfinished files, but not copies."""
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
def _locked(path: Path, report: ReportLine) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another fetch of the Java archives")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
