"""The outbox library's Alembic operations, run by Alembic itself."""

import io
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy.exc import DBAPIError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

ENVIRONMENT = """
from alembic import context
from sqlalchemy import create_engine

url = context.config.get_main_option("sqlalchemy.url")
if context.is_offline_mode():
    context.configure(url=url)
    with context.begin_transaction():
        context.run_migrations()
else:
    with create_engine(url).connect() as connection:
        context.configure(connection=connection)
        with context.begin_transaction():
            context.run_migrations()
"""
REVISION = """
from alembic import op

import towpath.outbox.alembic

revision = "{revision}"
down_revision = {down_revision!r}


def upgrade():
    {upgrade}


def downgrade():
    {downgrade}
"""


class Migrations:
    """A folder of revisions for one database."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder, self.dsn = folder, dsn
        (folder / "versions").mkdir()
        (folder / "env.py").write_text(ENVIRONMENT, encoding="utf-8")
        self.output = io.StringIO()
        self.config = Config(output_buffer=self.output)
        self.config.set_main_option("script_location", str(folder))
        url = dsn.replace("postgresql:", "postgresql+psycopg2:", 1)
        self.config.set_main_option("sqlalchemy.url", url)
        self._last = None

    def add(self, upgrade: str, downgrade: str = "pass") -> None:
        """Add a revision with the code of its upgrade and its downgrade."""
        revision = f"r{len([*self.folder.glob('versions/*.py')])}"
        text = REVISION.format(
            revision=revision,
            down_revision=self._last,
            upgrade=textwrap.indent(upgrade, "    ").strip(),
            downgrade=downgrade,
        )
        path = self.folder / "versions" / f"{revision}.py"
        path.write_text(text, encoding="utf-8")
        self._last = revision

    def upgrade(self, *, is_printed: bool = False) -> None:
        """Upgrade the database, or print the statements of the upgrade."""
        command.upgrade(self.config, "head", sql=is_printed)

    def rows(self, sql: str) -> list:
        """Run a statement, and return its rows."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            found = connection.execute(sql)
            return found.fetchall() if found.description else []


@pytest.fixture
def migrations(database: str, tmp_path: Path) -> Migrations:
    """Provide migrations for an empty database."""
    return Migrations(tmp_path, database)


@contextmanager
def new_roles(dsn: str, *names: str) -> Iterator[None]:
    """Create roles, and drop them with their privileges after the block."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name in names:
            connection.execute(f"create role {name}")
        yield
        for name in names:
            connection.execute(f"drop owned by {name}")
            connection.execute(f"drop role {name}")


ALL = """\
op.create_outbox(writers=["{writer}"], cleaners=["{cleaner}"])
op.create_signal_table(operators=["{operator}"], relays=["{relay}"])
op.create_heartbeat_table(relays=["{relay}"])
op.check_outbox()
op.check_signal_table()
op.check_heartbeat_table()"""
EVENT = (
    "insert into towpath.outbox (id, aggregate_type, aggregate_id, type)"
    " values (gen_random_uuid(), 'post', '7', 'PostPublished')"
)
SIGNAL = "insert into towpath.signal (id, type) values ('s', 'log')"
HEARTBEAT = "insert into towpath.heartbeat values (1, 1, now())"


def test_each_role_may_do_its_work_and_nothing_else(migrations, unique):
    """
    Writers insert events, cleaners delete them, and operators send signals.

    Relays send and answer signals, and count heartbeats.
    """
    kinds = ("writer", "cleaner", "operator", "relay")
    roles = {kind: f"{unique}_{kind}" for kind in kinds}
    work = {
        "insert an event": EVENT,
        "delete events": "delete from towpath.outbox where id is not null",
        "request": SIGNAL,
        "answer": "update towpath.signal set status = 'accepted'",
        "count": HEARTBEAT,
        "create": "create table towpath.other ()",
    }
    migrations.add(ALL.format(**roles))
    with new_roles(migrations.dsn, *roles.values()):
        migrations.upgrade()
        allowed = {kind: set() for kind in kinds}
        for kind, role in roles.items():
            for name, statement in work.items():
                with psycopg.connect(migrations.dsn) as connection:
                    connection.execute(f"set role {role}")
                    try:
                        connection.execute(statement)
                    except psycopg.errors.InsufficientPrivilege:
                        connection.rollback()
                        continue
                    connection.rollback()
                    allowed[kind].add(name)

    assert allowed == {
        "writer": {"insert an event"},
        "cleaner": {"delete events"},
        "operator": {"request"},
        "relay": {"request", "answer", "count"},
    }


def test_a_writer_with_the_way_delete_may_delete_its_rows(migrations, unique):
    """
    Its privileges suffice to insert and delete an event.
    """
    migrations.add(f'op.create_outbox(writers=["{unique}_w"], way="delete")')
    with new_roles(migrations.dsn, f"{unique}_w"):
        migrations.upgrade()
        with psycopg.connect(migrations.dsn) as connection:
            connection.execute(f"set role {unique}_w")
            connection.execute(EVENT)
            connection.execute("delete from towpath.outbox where id is not null")
            connection.rollback()


def test_a_table_of_an_earlier_release_is_upgraded(migrations):
    """
    A signal table without its newest column gets it, and keeps its rows.
    """
    migrations.rows(
        "create schema towpath; create table towpath.signal (id varchar(64) primary key"
        ", type varchar(32) not null, data text, status text, detail jsonb,"
        " updated_at timestamptz);" + SIGNAL
    )
    migrations.add("op.check_signal_table()")
    with pytest.raises(DBAPIError, match=r"table towpath.signal: relay is missing"):
        migrations.upgrade()
    migrations.folder.joinpath("versions/r0.py").unlink()
    migrations._last = None
    migrations.add("op.create_signal_table()\nop.check_signal_table()")
    migrations.upgrade()

    assert [("s", None)] == migrations.rows("select id, relay from towpath.signal")


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("drop table towpath.outbox", "id is missing; aggregate_type is missing"),
        ("alter table towpath.outbox drop column headers", "headers is missing"),
        (
            "alter table towpath.outbox alter column payload type jsonb",
            "payload is jsonb, not json",
        ),
    ],
)
def test_a_check_reports_the_differences_of_a_table(migrations, statement, reason):
    """
    If a table was changed by hand, the migration fails, and names each difference.
    """
    migrations.add("op.create_outbox()")
    migrations.upgrade()
    migrations.rows(statement)
    migrations.add("op.check_outbox()")
    with pytest.raises(DBAPIError, match=f"table towpath.outbox: {reason}"):
        migrations.upgrade()


def test_the_printed_migration_can_be_run(migrations, unique):
    """
    A client can run the statements of ``alembic upgrade --sql``, including the checks.
    """
    roles = dict.fromkeys(("writer", "cleaner", "operator", "relay"), f"{unique}_r")
    migrations.add(ALL.format(**roles))
    migrations.upgrade(is_printed=True)
    with new_roles(migrations.dsn, f"{unique}_r"):
        migrations.rows(migrations.output.getvalue())
        migrations.rows(EVENT)

    assert [(1,)] == migrations.rows("select count(*) from towpath.outbox")


def test_an_outbox_may_have_its_own_table_and_column_names(migrations):
    """
    Columns without a name are left out.
    """
    options = (
        'table="blog.events", columns={"aggregate_type": "kind", "traceparent": "",'
        ' "headers": "", "type": "Order"}'
    )
    migrations.add(
        f"op.create_outbox({options})\nop.check_outbox({options})",
        'op.drop_outbox(table="blog.events")',
    )
    migrations.upgrade()
    columns = migrations.rows(
        "select attname from pg_attribute where attrelid = 'blog.events'::regclass"
        " and attnum > 0 order by attnum"
    )
    command.downgrade(migrations.config, "base")

    assert ["id", "kind", "aggregate_id", "Order", "payload", "occurred_at"] == [
        name for (name,) in columns
    ]
    assert [(None,)] == migrations.rows("select to_regclass('blog.events')")


def test_a_partitioned_outbox_gets_partitions_for_the_coming_days(migrations):
    """
    Today's partition exists, too, and receives new rows, even of old events.
    """
    migrations.add(
        "op.create_outbox(is_partitioned=True, days_ahead=3)\n"
        "op.check_outbox(is_partitioned=True)"
    )
    migrations.upgrade()
    migrations.rows(
        "insert into towpath.outbox (id, aggregate_type, aggregate_id, type,"
        " occurred_at) values (gen_random_uuid(), 'post', '7', 'Old', '2001-01-01')"
    )
    names = migrations.rows(
        "select inhrelid::regclass::text from pg_inherits"
        " where inhparent = 'towpath.outbox'::regclass order by 1"
    )
    [(today,)] = migrations.rows(
        "select to_char(clock_timestamp() at time zone 'utc', 'YYYYMMDD')"
    )
    [(where,)] = migrations.rows("select tableoid::regclass::text from towpath.outbox")

    assert 4 == len(names)
    assert f"towpath.outbox_{today}" == where == names[0][0]


def test_the_revision_of_the_page_runs(migrations):
    """
    The revision on the outbox page creates an outbox that accepts events.
    """
    page = Path(__file__).parents[2] / "docs/outbox.md"
    text = page.read_text(encoding="utf-8")
    [revision] = re.findall(
        r"`versions/outbox.py`\n\n```python\n(.*?)```", text, re.DOTALL
    )
    path = migrations.folder / "versions/outbox.py"
    path.write_text(revision, encoding="utf-8")
    roles = ("blog", "blog_cleaner", "blog_admin", "towpath_relay")
    with new_roles(migrations.dsn, *roles):
        migrations.upgrade()
        migrations.rows(EVENT)
        command.downgrade(migrations.config, "base")

    assert [(None,)] == migrations.rows("select to_regclass('towpath.outbox')")


def test_a_way_that_needs_no_table_is_refused(migrations):
    """
    The way ``message`` writes no rows, so it needs no table.
    """
    migrations.add('op.create_outbox(way="message")')
    with pytest.raises(Exception, match="way must be keep or delete, not 'message'"):
        migrations.upgrade()
