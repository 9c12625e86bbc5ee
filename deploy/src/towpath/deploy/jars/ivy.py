"""
Fetch with the Ivy inside PySpark, which needs nothing but a Java runtime.

Ivy fetches one file after the other, so several of them share the work, each with a
cache of its own. Every archive is named and nothing is asked about it: no descriptors,
no metadata. Checksums are off here because the lock's sha256 is checked afterwards.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from xml.sax.saxutils import quoteattr

from towpath.deploy.errors import JarsError
from towpath.deploy.jars.lock import Jar

# Fetching waits for the network most of the time; more of them gain little.
PROCESSES: Final = 4
_SETTINGS: Final = """\
<ivysettings>
 <settings defaultResolver="public"/>
 <resolvers>
  <ibiblio name="public" m2compatible="true" usepoms="false"
   useMavenMetadata="false" checksums=""/>
 </resolvers>
</ivysettings>
"""
_MODULE: Final = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
 <info organisation="towpath" module="jars" revision="1"/>
 <configurations>{configurations}</configurations>
 <dependencies>
{dependencies} </dependencies>
</ivy-module>
"""
_DEPENDENCY: Final = """\
  <dependency org={group} name={artifact} rev={version} conf={conf} transitive="false">
   <artifact name={artifact} type={kind} ext={kind}{classifier}/></dependency>
"""
_LAYOUT: Final = (
    "[orgPath]/[module]/[revision]/[artifact]-[revision](-[classifier]).[ext]"
)


def commands(
    java: Path, flags: Sequence[str], jars: Sequence[Jar], work: Path
) -> list[list[str]]:
    """Share the archives out by size and return the commands that fetch them."""
    shares: list[list[Jar]] = [[] for _ in range(PROCESSES)]
    for jar in sorted(jars, key=lambda jar: -jar.size_bytes):
        min(shares, key=lambda s: sum(j.size_bytes for j in s)).append(jar)
    return [
        _command(java, flags, share, work / f"ivy-{number}", repository(work))
        for number, share in enumerate(shares)
        if share
    ]


def repository(work: Path) -> Path:
    """Return the folder that gets the files, laid out as a Maven repository."""
    return work / "repository"


def _command(
    java: Path, flags: Sequence[str], jars: Sequence[Jar], place: Path, target: Path
) -> list[str]:
    place.mkdir(parents=True, exist_ok=True)
    confs = [f"c{number}" for number in range(len(jars))]
    # A configuration for each: one configuration holds one version of a module only.
    text = _MODULE.format(
        configurations="".join(f'<conf name="{conf}"/>' for conf in confs),
        dependencies="".join(map(_dependency, jars, confs)),
    )
    (place / "ivy.xml").write_text(text, encoding="utf-8")
    (place / "settings.xml").write_text(_SETTINGS, encoding="utf-8")
    return [
        *(str(java), *flags, f"-Divy.default.ivy.user.dir={place / 'user'}"),
        *("-jar", str(_program()), "-warn", "-settings", str(place / "settings.xml")),
        *("-ivy", str(place / "ivy.xml"), "-cache", str(place / "cache")),
        *("-types", "jar", "tar.gz", "-confs", *confs),
        *("-retrieve", f"{target}/{_LAYOUT}"),
    ]


def _dependency(jar: Jar, conf: str) -> str:
    group, artifact, version, kind, classifier = map(quoteattr, jar.parts)
    return _DEPENDENCY.format(
        group=group,
        artifact=artifact,
        version=version,
        conf=quoteattr(f"{conf}->default"),
        kind=kind,
        classifier=f" m:classifier={classifier}" if jar.parts[-1] else "",
    )


def _program() -> Path:
    spec = find_spec("pyspark")
    origin = Path(spec.origin) if spec and spec.origin else Path("/")
    for found in sorted(origin.parent.glob("jars/ivy-*.jar")):
        return found
    message = "neither Maven nor the Ivy inside PySpark is here"
    raise JarsError(message)
