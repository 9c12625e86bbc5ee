"""Values that a warehouse cannot represent, from the source to the verifier."""

import pytest

from support.verified_sink import VerifiedRig
from towpath.settings import load
from towpath.sinks.targets.warehouse.read import WarehouseReader

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(240)]


@pytest.fixture
def rig(stack, database, unique, tmp_path, lake):
    """
    Provide a warehouse that stores NULL for unrepresentable values, and a row of them.
    """
    sink_settings, session = lake
    stack.up("postgres", "kafka")
    made = VerifiedRig(database, stack.kafka, unique, tmp_path)
    columns = "id int primary key, until timestamptz, day date, total numeric(12, 2)"
    made.prepare(
        f'kind = "warehouse"\nurl = "{sink_settings.url}"\n'
        f'folder = "{sink_settings.folder}"\n'
        'warehouse.unfit = "null"\n',
        {"a": columns},
        f"{unique}.",
    )
    made.execute("insert into s.a values (1, 'infinity', '0044-03-15 BC', 'NaN')")
    try:
        with made.followed(session):
            yield made
    finally:
        made.close()


def test_unrepresentable_values_are_null_and_verified_as_null(rig, unique, capsys):
    """
    Filled and streamed rows keep their other values; none becomes a dead letter (B63).
    """
    rig.execute("insert into s.a values (2, '20260-01-01Z', '-infinity', 1.50)")
    rig.catch_up()
    rig.wait_for(lambda: not rig.is_behind())
    (sink,) = load(rig.config, {}).sink
    reader = WarehouseReader(sink)
    held = {row.key: dict(row.fields) for row in reader.rows(f"{unique}.a")}
    reader.close()
    code, _ = rig.verify(capsys)
    nothing = {"until": None, "day": None}

    assert (0, {"1": None, "2": "1.50"}) == (
        code,
        {key: row.pop("total") for key, row in held.items()},
    )
    assert {"1": {"id": 1, **nothing}, "2": {"id": 2, **nothing}} == held
