"""Scratch."""
import importlib.util, sys
import pytest
from pathlib import Path
spec = importlib.util.spec_from_file_location("ts", str(Path(__file__).parent / "test_snapshot.py"))
ts = importlib.util.module_from_spec(spec); sys.modules["ts"] = ts; spec.loader.exec_module(ts)
source = ts.source
pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]

def test_tmp(source):
    ts.fill(source, 5000)
    source.prepare("s.a")
    source.config.write_text(source.config.read_text().replace("[relay]\n", '[relay]\ndelivery = "transactional"\n'))
    source.start()
    with ts.Writers(source.dsn, 5000) as w:
        source.signal("s1", data_collections=["s.a"], max_rows_per_second=2000)
        source.wait_for(lambda: source.judged() >= 2000)
        source.kill(); source.start()
        d = source.wait_for_answer("s1")
    source.catch_up()
    f = source.fold()
    print("REQ", len(source.requests()), "dropped", d["dropped"])
    assert [] == f.stale
    assert source.table() == f.rows
