"""
Start Kafka as the vendor's image does: settings from the environment, a plain log.
"""

import os
import shlex
from pathlib import Path

# Read by the script that starts the broker; not settings of the broker.
_OTHERS = {"KAFKA_HEAP_OPTS"}
_SETTINGS = Path("/opt/settings/server.properties")
_LOGGING = """\
status=WARN
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %-5p %c{1}: %m%n
rootLogger.level=INFO
rootLogger.appenderRef.console.ref=console
"""

environ = os.environ  # noqa: TID251 - a root
lines = [
    f"{name.removeprefix('KAFKA_').lower().replace('_', '.')}={value}"
    for name, value in environ.items()
    if name.startswith("KAFKA_") and name not in _OTHERS
]
_SETTINGS.write_text("\n".join(lines) + "\n", encoding="utf-8")
_SETTINGS.with_name("log4j2.properties").write_text(_LOGGING, encoding="utf-8")
identity = Path(environ["KAFKA_LOG_DIRS"], "meta.properties")
if not identity.exists():
    facts = {
        "version": 1,
        "cluster.id": environ["CLUSTER_ID"],
        "node.id": environ["KAFKA_NODE_ID"],
        "directory.id": "c3RhbmQtaW4tZGlyZWN0b3",
    }
    text = "".join(f"{name}={value}\n" for name, value in facts.items())
    identity.write_text(text, encoding="utf-8")
command = [
    *("java", *shlex.split(environ.get("KAFKA_HEAP_OPTS", ""))),
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError"),
    "-Dlog4j2.configurationFile=/opt/settings/log4j2.properties",
    *("-cp", "/opt/kafka/*", "kafka.Kafka", str(_SETTINGS)),
]
os.execvp(command[0], command)  # noqa: S606 - our own arguments
