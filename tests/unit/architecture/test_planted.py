"""
Planted faults and defects name methods that exist.

The programs that plant them replace methods by name when they start, in processes of
the integration tests; this test finds a missed rename within a second.
"""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]

FAULTS = """
from faults.relay_with_fault import POINTS, Fault
for name, plant in POINTS.items():
    plant(Fault(1, is_late=False))
    print(name)
"""
DRIVER_FAULTS = """
from faults.driver_with_fault import POINTS, Fault
for name, plant in POINTS.items():
    plant(Fault("cache"))
    print(name)
"""
DEFECTS = """
from pathlib import Path
from integration.relay_with_defect import DEFECTS
for name, plant in DEFECTS.items():
    plant(Path())
    print(name)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "program",
    [FAULTS, DRIVER_FAULTS, DEFECTS],
    ids=["relay faults", "driver faults", "defects"],
)
def test_every_planted_fault_finds_its_method(program: str):
    """All faults are planted in one process, one after another."""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (0, "") == (ended.returncode, ended.stderr[-2000:])
    assert len(ended.stdout.splitlines()) > 5
