"""A warehouse in an object store: writes, upkeep and reads."""

import re
from collections.abc import Iterator

import pytest
import requests
import structlog

from support import object_store
from support.warehouse_tables import Lake, session_of, write
from towpath.settings import WarehouseOptions
from towpath.sinks.engine.session import SparkSql

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(180)]

BUCKET = f"s3://{object_store.BUCKET}/warehouse"


@pytest.fixture
def store(tmp_path) -> Iterator[str]:
    """Provide the address of an object store."""
    with object_store.serving(tmp_path / "store") as address:
        yield address


@pytest.fixture
def stored(lake, store, database) -> Iterator[Lake]:
    """Provide a warehouse whose files are in the store, with a session of its own."""
    sink_settings, _ = lake
    options = {
        "location": BUCKET,
        "properties": {
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.endpoint": store,
            "s3.path-style-access": "true",
            "s3.access-key-id": "anyone",
            "s3.secret-access-key": "anything",
            "client.region": "eu-central-1",
        },
    }
    chosen = {"url": database, "warehouse": WarehouseOptions(**options)}
    sink = sink_settings.model_copy(update={**chosen, "folder": None})
    session = SparkSql(session_of(sink))
    made = Lake(sink, session, **options, compact_after_files=4)
    yield made
    made.reader.close()


def objects(store):
    """List the keys in the bucket."""
    listing = requests.get(f"{store}/{object_store.BUCKET}?list-type=2", timeout=30)
    return re.findall("<Key>([^<]+)</Key>", listing.text)


def test_rows_in_an_object_store_equal_the_written_rows(stored, store):
    """
    Rows are merged and compacted, events stored once; a second engine reads them.
    """
    sink = stored.sink()
    with structlog.testing.capture_logs() as logged:
        write(
            sink,
            [stored.change(8, n, {"note": "a", "body": "{}"}) for n in range(4)],
            [stored.event(n) for n in range(3)],
        )
        for number in range(2, 4):
            changes = [
                stored.change(8 * number, 0, {"note": str(number)}),
                stored.change(8 * number, number + 8, {"note": "new"}),
            ]
            write(sink, changes, [stored.event(number)])
        partial = stored.change(80, 1, {"note": "b"}, unchanged=["body"])
        outcome = write(sink, [partial, stored.change(80, 2, None)])
        again = write(stored.sink(), [stored.change(4, 3, {"note": "stale"})])
    files = stored.sql("SELECT file_path FROM {t}.files")
    live = stored.sql("SELECT id, note, body FROM {t}_live WHERE id < 4 ORDER BY id")

    assert ((2, 0), (0, 1), []) == (
        (outcome.applied, outcome.stale),
        (again.applied, again.stale),
        [line for line in logged if line["log_level"] == "warning"],
    )
    assert [(0, "3", None), (1, "b", "{}"), (3, "a", "{}")] == [
        tuple(row.values()) for row in live
    ]
    assert {"0": "3", "1": "b", "3": "a"} | {
        str(n + 8): "new" for n in range(2, 4)
    } == (stored.notes())
    assert 4 == len(list(stored.reader.rows(stored.events)))
    assert {BUCKET} == {file["file_path"][: len(BUCKET)] for file in files}
    assert len(files) < 4
    assert len(objects(store)) > 20
