"""The outbox library's fixtures for an application's tests, run by pytest."""

import textwrap

import pytest

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

CONFTEST = """
    import pytest
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import Session
    from towpath.outbox import Events, Outbox, configure
    from towpath.outbox.testing import guard_producers

    guard_producers()
    configure(Outbox(Events(unknown="none"), way="message"))

    @pytest.fixture
    def engine():
        engine = create_engine("{url}")
        yield engine
        engine.dispose()

    @pytest.fixture
    def session(engine):
        with Session(engine) as session:
            yield session
"""
HEAD = """
    import asyncio
    import psycopg
    import pytest
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
    from towpath.outbox import record, record_async

    DSN = "{dsn}"
    URL = DSN.replace("postgresql:", "postgresql+asyncpg:", 1)

    def noted(number):
        return {{"aggregate_type": "note", "aggregate_id": "1", "type": "Noted",
                "payload": {{"n": number}}}}
"""


@pytest.fixture
def application(pytester, database):
    """Provide a function that runs the source text of an application's tests."""
    url = database.replace("postgresql:", "postgresql+psycopg2:", 1)
    pytester.makeconftest(textwrap.dedent(CONFTEST.format(url=url)))

    def run(body):
        text = textwrap.dedent(HEAD.format(dsn=database)) + textwrap.dedent(body)
        pytester.makepyfile(text)
        # The plug-ins of our own tests take longer to import than the tests run.
        others = ("randomly", "cacheprovider", "schemathesis", "locust", "anyio")
        return pytester.runpytest_subprocess(
            *(argument for name in others for argument in ("-p", f"no:{name}"))
        )

    return run


def test_a_test_sees_the_events_that_it_recorded(application):
    """
    Events of a rolled-back savepoint or transaction are left out.
    """
    application(
        """
        def test_it(session, recorded_events):
            record(session, noted(1))
            savepoint = session.begin_nested()
            record(session, noted(2))
            savepoint.rollback()
            with session.begin_nested():
                record(session, noted(3))
            session.commit()
            record(session, noted(4))
            session.rollback()
            assert [1, 3] == [event.payload["n"] for event in recorded_events]
            assert ["Noted", "Noted"] == recorded_events.types
            assert recorded_events.of("Other") == []

        def test_another(recorded_events):
            assert recorded_events == []
        """
    ).assert_outcomes(passed=2)


def test_a_rollback_removes_the_events_of_its_own_transaction(application):
    """
    Events recorded by other connections and drivers in the meantime remain.
    """
    application(
        """
        def test_connections(engine, recorded_events):
            with engine.connect() as first, engine.connect() as second:
                record(first, noted(1))
                record(second, noted(2))
                savepoint = first.begin_nested()
                record(first, noted(3))
                record(second, noted(4))
                savepoint.rollback()
                second.commit()
                assert [1, 2, 4] == [event.payload["n"] for event in recorded_events]
                with first.begin_nested():
                    record(first, noted(5))
                first.rollback()
            assert [2, 4] == [event.payload["n"] for event in recorded_events]

        def test_drivers(session, recorded_events):
            record(session, noted(1))
            with psycopg.connect(DSN) as connection:
                record(connection, noted(2))
            session.rollback()
            assert [2] == [event.payload["n"] for event in recorded_events]

        def test_two_phases(engine, recorded_events):
            with engine.connect() as connection:
                for number, end in enumerate(("rollback", "commit")):
                    transaction = connection.begin_twophase()
                    record(connection, noted(number))
                    getattr(transaction, end)()
            assert [1] == [event.payload["n"] for event in recorded_events]

        def test_asynchronous(recorded_events):
            async def work():
                engine = create_async_engine(URL)
                async with AsyncSession(engine) as one, engine.connect() as other:
                    await record_async(one, noted(1))
                    await record_async(other, noted(2))
                    await one.rollback()
                    await other.commit()
                await engine.dispose()

            asyncio.run(work())
            assert [2] == [event.payload["n"] for event in recorded_events]
        """
    ).assert_outcomes(passed=4)


def test_a_transaction_that_began_before_the_fixture_is_followed(application):
    """
    A rollback of the transaction or of its savepoint removes only its own events.
    """
    application(
        """
        @pytest.fixture
        def begun(session):
            session.connection()
            return session

        @pytest.fixture
        def nested(begun):
            return begun.begin_nested()

        def test_transaction(begun, engine, recorded_events):
            record(begun, noted(1))
            with engine.begin() as connection:
                record(connection, noted(2))
            with begun.begin_nested():
                record(begun, noted(3))
            begun.rollback()
            assert [2] == [event.payload["n"] for event in recorded_events]

        def test_savepoint(nested, begun, recorded_events):
            record(begun, noted(1))
            nested.rollback()
            record(begun, noted(2))
            begun.commit()
            assert [2] == [event.payload["n"] for event in recorded_events]
        """
    ).assert_outcomes(passed=2)


PRODUCERS = {
    "confluent_kafka": """
        from confluent_kafka import Producer
        def send():
            Producer({"bootstrap.servers": "127.0.0.1:1"}).produce("t", b"x")
        """,
    "serializing": """
        from confluent_kafka import SerializingProducer
        def send():
            SerializingProducer({"bootstrap.servers": "127.0.0.1:1"}).produce("t", b"x")
        """,
    "batch": """
        from confluent_kafka import Producer
        def send():
            producer = Producer({"bootstrap.servers": "127.0.0.1:1"})
            producer.produce_batch("t", [{"value": b"x"}])
        """,
    "asynchronous": """
        from confluent_kafka.aio import AIOProducer
        def send():
            AIOProducer.produce(None, "t", b"x")
        """,
    "kafka": """
        from kafka import KafkaProducer
        def send():
            KafkaProducer.send(None, "t", b"x")
        """,
    "aiokafka": """
        from aiokafka import AIOKafkaProducer
        def send():
            AIOKafkaProducer.send(None, "t", b"x")
        """,
}


@pytest.mark.parametrize("client", PRODUCERS)
def test_a_dual_write_fails_the_test(application, client):
    """
    A send inside a transaction fails the test, even if the code hides the error.
    """
    result = application(
        textwrap.dedent(PRODUCERS[client])
        + textwrap.dedent(
            """
            from contextlib import suppress

            def test_inside(session, no_dual_writes):
                record(session, noted(1))
                with suppress(Exception):
                    send()
                session.commit()

            def test_psycopg(no_dual_writes):
                with psycopg.connect(DSN) as connection:
                    record(connection, noted(1))
                    with suppress(Exception):
                        send()
            """
        )
    )

    result.assert_outcomes(passed=2, errors=2)
    result.stdout.fnmatch_lines(["*DualWriteError: *was called while a transaction*"])


def test_a_send_after_the_commit_is_not_a_dual_write(application):
    """
    Code outside transactions may send records, and so may tests without the fixture.
    """
    application(
        textwrap.dedent(PRODUCERS["confluent_kafka"])
        + textwrap.dedent(
            """
            def test_after(session, no_dual_writes):
                record(session, noted(1))
                session.commit()
                send()

            def test_psycopg(no_dual_writes):
                with psycopg.connect(DSN) as connection:
                    record(connection, noted(1))
                    connection.commit()
                    send()

            def test_without_fixture(session):
                record(session, noted(1))
                send()
            """
        )
    ).assert_outcomes(passed=3)


INSIDE = {
    "psycopg2": """
        def test_inside(no_dual_writes):
            connection = psycopg2.connect(DSN)
            with connection.cursor() as cursor:
                cursor.execute("select 1")
            with suppress(Exception):
                send()
            connection.close()
        """,
    "psycopg": """
        def test_inside(no_dual_writes):
            with psycopg.connect(DSN) as connection:
                with suppress(psycopg.Error):
                    connection.execute("select 1 / 0")
                with suppress(Exception):
                    send()
        """,
    "psycopg, asynchronous": """
        def test_inside(no_dual_writes):
            async def work():
                async with await psycopg.AsyncConnection.connect(DSN) as connection:
                    await connection.execute("select 1")
                    with suppress(Exception):
                        send()

            asyncio.run(work())
        """,
    "asyncpg": """
        def test_inside(no_dual_writes):
            async def work():
                connection = await asyncpg.connect(DSN)
                async with connection.transaction():
                    with suppress(Exception):
                        send()
                await connection.close()

            asyncio.run(work())
        """,
    "sqlalchemy": """
        def test_inside(session, no_dual_writes):
            session.execute(text("select 1"))
            with suppress(Exception):
                send()
        """,
}
IMPORTS = """
    import asyncio
    from contextlib import suppress
    import asyncpg
    import psycopg2
    from sqlalchemy import text
"""


@pytest.mark.parametrize("driver", INSIDE)
def test_a_transaction_without_an_event_is_checked_too(application, driver):
    """
    The usual dual write is a handler that sends to Kafka and records no event.
    """
    parts = (IMPORTS, PRODUCERS["confluent_kafka"], INSIDE[driver])
    result = application("".join(map(textwrap.dedent, parts)))

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*DualWriteError: *was called while a transaction*"])
