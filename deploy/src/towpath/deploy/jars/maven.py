"""
Fetch with Maven, where it is installed: many files at once.

Each use is a module of its own, because uses need different versions of one artifact.
Every archive is named, with everything that it depends on left out: the lock decides.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from towpath.deploy.jars.lock import Jar

_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_PARENT: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
 <modelVersion>4.0.0</modelVersion>
 <groupId>towpath</groupId><artifactId>{name}</artifactId><version>1</version>
 <packaging>pom</packaging>
 {content}
</project>
"""
_DEPENDENCY: Final = """\
 <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>
  <version>{version}</version><type>{kind}</type>{classifier}
  <exclusions><exclusion>
   <groupId>*</groupId><artifactId>*</artifactId>
  </exclusion></exclusions></dependency>
"""


def command(program: str, jars: Sequence[Jar], work: Path) -> list[str]:
    """Write the project that names the archives and return what fetches them."""
    project = work / "project"
    uses = sorted({jar.use for jar in jars})
    for use in uses:
        content = "".join(_dependency(jar) for jar in jars if jar.use == use)
        _write(project / use, use, f"<dependencies>\n{content}</dependencies>")
    modules = "".join(f"<module>{use}</module>" for use in uses)
    _write(project, "jars", f"<modules>{modules}</modules>")
    return [
        *(program, "--batch-mode", "--errors", "--fail-at-end"),
        *("--file", str(project / "pom.xml")),
        # A repository of our own: another clone's Maven must not meet this one.
        f"-Dmaven.repo.local={repository(work)}",
        "-Dmaven.artifact.threads=16",
        f"{_PLUGIN}:resolve",
    ]


def repository(work: Path) -> Path:
    """Return the folder that gets the files, laid out as a Maven repository."""
    return work / "repository"


def _dependency(jar: Jar) -> str:
    group, artifact, version, kind, classifier = map(escape, jar.parts)
    named = f"<classifier>{classifier}</classifier>" if classifier else ""
    return _DEPENDENCY.format(
        group=group, artifact=artifact, version=version, kind=kind, classifier=named
    )


def _write(folder: Path, name: str, content: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = _PARENT.format(name=name, content=content)
    (folder / "pom.xml").write_text(text, encoding="utf-8")
