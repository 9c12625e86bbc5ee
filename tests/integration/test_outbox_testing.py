"""The library's fixtures for tests of an application, as pytest runs them."""

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
    import psycopg
    import pytest
    from towpath.outbox import record

    DSN = "{dsn}"

    def noted(number):
        return {{"aggregate_type": "note", "aggregate_id": "1", "type": "Noted",
                "payload": {{"n": number}}}}
"""


@pytest.fixture
def application(pytester, database):
    """Provide an application's tests: give their text and run them."""
    url = database.replace("postgresql:", "postgresql+psycopg2:", 1)
    pytester.makeconftest(textwrap.dedent(CONFTEST.format(url=url)))

    def run(body):
        text = textwrap.dedent(HEAD.format(dsn=database)) + textwrap.dedent(body)
        pytester.makepyfile(text)
        return pytester.runpytest_subprocess(
            "-p", "no:randomly", "-p", "no:cacheprovider"
        )

    return run


def test_a_test_sees_the_events_that_it_recorded(application):
    """
    Those of a rolled-back savepoint or transaction are not among them.
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
    A producer inside a transaction is the defect, even if the code hides the error.
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


def test_a_producer_after_the_commit_is_no_dual_write(application):
    """
    Other code may send records of its own; so may tests without the fixture.
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
def test_a_transaction_that_records_nothing_is_watched_too(application, driver):
    """
    A handler that only sends to Kafka is the usual dual write.
    """
    parts = (IMPORTS, PRODUCERS["confluent_kafka"], INSIDE[driver])
    result = application("".join(map(textwrap.dedent, parts)))

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*DualWriteError: *was called while a transaction*"])
