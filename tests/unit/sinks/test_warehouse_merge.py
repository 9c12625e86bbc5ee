"""The statements that write a batch, word for word."""

from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.targets.warehouse.schema import (
    STRING,
    LakeColumn,
    LakeName,
    LakeTable,
    current_state,
)
from towpath.sinks.targets.warehouse.statements import (
    insert_new,
    purge,
    stored_positions,
    upsert,
)

LINES = current_state(
    "shop.lines",
    RelationShape(
        "shop",
        "lines",
        (
            Column("order_id", "bigint"),
            Column("line_no", "integer"),
            Column("it's", "text"),
        ),
        ("order_id", "line_no"),
        "0",
    ),
)
LOG = LakeTable(
    LakeName("shop", "events"),
    (LakeColumn("id", STRING, is_key=True), LakeColumn("payload", STRING)),
    ("id",),
)


def test_an_upsert_is_guarded_by_position():
    """
    A stored row is replaced unless it is newer; a missing key is inserted.
    """
    assert upsert(LINES, "batch") == (
        "MERGE INTO lake.`shop`.`lines`.`branch_towpath` t USING `batch` s"
        " ON t.`order_id` = s.`order_id` AND t.`line_no` = s.`line_no`\n"
        "WHEN MATCHED AND s.`_position` >= t.`_position` THEN UPDATE SET\n"
        "  t.`order_id` = s.`order_id`,\n"
        "  t.`line_no` = s.`line_no`,\n"
        "  t.`it's` = s.`it's`,\n"
        "  t.`_position` = s.`_position`,\n"
        "  t.`_is_deleted` = s.`_is_deleted`\n"
        "WHEN NOT MATCHED THEN INSERT"
        " (`order_id`, `line_no`, `it's`, `_position`, `_is_deleted`)"
        " VALUES (s.`order_id`, s.`line_no`, s.`it's`, s.`_position`, s.`_is_deleted`)"
    )


def test_an_unchanged_column_keeps_its_stored_value():
    """
    Only columns that some row leaves out need a condition per row.
    """
    statement = upsert(LINES, "batch", ["it's"])

    assert (
        "  t.`line_no` = s.`line_no`,\n"
        "  t.`it's` = CASE WHEN array_contains(s.`_kept`, 'it\\'s')"
        " THEN t.`it's` ELSE s.`it's` END,\n"
    ) in statement


def test_only_the_span_of_the_keys_is_searched():
    """
    Files without a key of the batch's span are not opened; the key still decides.
    """
    assert (
        " AND t.`line_no` = s.`line_no`\n"
        "  AND t.`order_id` >= -5 AND t.`order_id` <= 9\n"
        "WHEN MATCHED"
    ) in upsert(LINES, "batch", (), (-5, 9))


def test_only_tombstones_are_purged():
    """
    A live row is kept, however old it is.
    """
    assert purge(LINES.name, "5") == (
        "DELETE FROM lake.`shop`.`lines` WHERE `_is_deleted` AND `_position` < '5'"
    )


def test_an_event_log_stores_each_event_once():
    """
    An event with a stored id is skipped; only the batch's span of time is searched.
    """
    assert insert_new(
        LOG, "batch", ("2026-01-01 00:00:00Z", "2026-01-02 00:00:00Z")
    ) == (
        "MERGE INTO lake.`shop`.`events`.`branch_towpath` t USING `batch` s"
        " ON t.`id` = s.`id`\n"
        "  AND t.`occurred_at` >= timestamp '2026-01-01 00:00:00Z'"
        " AND t.`occurred_at` <= timestamp '2026-01-02 00:00:00Z'\n"
        "WHEN NOT MATCHED THEN INSERT (`id`, `payload`) VALUES (s.`id`, s.`payload`)"
    )


def test_an_event_log_without_a_span_is_searched_completely():
    """
    When a time is missing, every file may hold the event.
    """
    assert "occurred_at" not in insert_new(LOG, "batch", None)


def test_stored_rows_are_queried_by_row_number():
    """
    The answer names the rows of the batch, not their keys.
    """
    assert stored_positions(LINES, "keys") == (
        "SELECT s.`_row`, t.`_position`, t.`_is_deleted`\n"
        "FROM lake.`shop`.`lines` t JOIN `keys` s"
        " ON t.`order_id` = s.`order_id` AND t.`line_no` = s.`line_no`"
    )
