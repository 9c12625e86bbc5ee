"""A source, prepared or not, that tests alter and the doctor examines."""

from pathlib import Path

import psycopg
from confluent_kafka.admin import AdminClient, NewTopic

from towpath.deploy.doctor.servers import source_findings
from towpath.relay.__main__ import init
from towpath.schemas.clock import SystemClock
from towpath.schemas.findings import CheckFinding
from towpath.settings import Route, Settings, Sink, load
from towpath.sinks.kinds import kind_of

FILE = """
version = 1
state_folder = "{folder}"
[[source]]
dsn = "{dsn}"
prefix = "{name}"
slot = "{name}"
tables = ["public.note", "public.day"]
[kafka]
bootstrap_servers = "{kafka}"
[registry]
url = "{registry}"
{more}
"""
TABLES = """
create table public.note (id int primary key, body text);
create table public.day (id int primary key) partition by range (id);
create table public.day_1 partition of public.day for values from (1) to (9);
create table public.other (id int primary key);
"""


class Source:
    """A source, and its configuration."""

    def __init__(self, stack, dsn: str, name: str, folder: Path) -> None:
        self.config = folder / "towpath.toml"
        self.name = name
        self.dsn = dsn
        self._stack = stack
        self._folder = folder
        self.configure()

    def configure(self, more: str = "", *, registry: str = "") -> Settings:
        """Write the configuration with further lines, and load it."""
        text = FILE.format(
            folder=self._folder / "state",
            dsn=self.dsn,
            name=self.name,
            kafka=self._stack.kafka,
            registry=registry,
            more=more,
        )
        self.config.write_text(text, encoding="utf-8")
        return load(self.config, {})

    def execute(self, *statements: str) -> None:
        """Run statements as the owner."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                for each in filter(None, map(str.strip, statement.split(";"))):
                    connection.execute(each.format(name=self.name))

    def topic(self, name: str, **settings: str) -> None:
        """Create a topic without the relay."""
        admin = AdminClient({"bootstrap.servers": self._stack.kafka})
        config = {key.replace("_", "."): value for key, value in settings.items()}
        partitions = int(config.pop("partitions", "1"))
        made = admin.create_topics([NewTopic(name, partitions, 1, config=config)])
        made[name].result(10)

    def remove_slots(self) -> None:
        """Drop the slots whose names begin with the source's name."""
        self.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
            " where slot_name like '{name}%'"
        )


def ids(found: list[CheckFinding]) -> set[str]:
    """Return level and id of each finding."""
    return {f"{each.level} {each.id}" for each in found}


def examined(source: Source, more: str = "") -> set[str]:
    """Examine the source; return level and id of each finding."""
    return ids(source_findings(source.configure(more), SystemClock()))


def prepared(stack, dsn: str, name: str, folder: Path) -> Source:
    """Create tables in a database, and prepare it."""
    source = Source(stack, dsn, name, folder)
    source.execute(TABLES)
    init(source.config, dry_run=False)
    return source


def health(kind: str, url: str, route: str) -> set[str]:
    """Check the target of a sink; return level and id of each finding."""
    sink = Sink(name="s", kind=kind, url=url, route=(Route(topic="t", name=route),))
    return ids(list(kind_of(sink).health(sink, SystemClock())))


def health_of_postgres(dsn: str) -> set[str]:
    """Check a Postgres database that a sink writes to."""
    return health("postgres", dsn, "public.copy")
