"""The list of planted defects matches the source."""

from pathlib import Path

import pytest

from mutants import campaign, catalogue
from mutants.catalogue import Mutant
from mutants.imports import ImportGraph
from mutants.runner import Outcome, overlay
from support.copying import replace

TARGET = "relay/src/towpath/relay/errors.py"


@pytest.mark.timeout(60)
def test_the_text_of_every_planted_defect_is_found():
    """
    Each text occurs exactly once in its file, and differs from its replacement.
    """
    mutants = catalogue.load()

    assert [] == catalogue.stale(mutants)
    assert [] == [m.id for m in mutants if m.find == m.replace]
    assert [] == [t for m in mutants for t in m.tests if not is_test(t)]


def is_test(name: str) -> bool:
    """Return whether a test's file exists."""
    return (catalogue.ROOT / name.partition("::")[0]).is_file()


@pytest.mark.parametrize("find", ["no such text", "class "])
def test_a_planted_defect_whose_text_is_not_unique_is_stale(find: str):
    """
    The text is missing or occurs twice, or the file does not exist.
    """
    mutant = Mutant("one", "I1", TARGET, find, "x")
    gone = replace(mutant, file="gone.py")

    assert (1, 1) == (len(catalogue.stale([mutant])), len(catalogue.stale([gone])))


@pytest.mark.parametrize("key", ["fond", "test"])
def test_an_entry_with_an_unknown_key_is_refused(tmp_path: Path, key: str):
    """
    A misspelled key is not silently ignored.
    """
    path = tmp_path / "one.toml"
    entry = f'id = "a"\nbreaks = "I1"\nfind = "b"\nreplace = "c"\n{key} = "d"\n'
    path.write_text(f'[[module]]\nfile = "x.py"\n[[module.mutant]]\n{entry}')

    with pytest.raises(ValueError, match="unknown keys"):
        list(catalogue.read(path))


def test_an_overlay_differs_only_in_the_planted_defect(tmp_path: Path):
    """
    All other files are links to those of the project.
    """
    source = (catalogue.ROOT / TARGET).read_text(encoding="utf-8")
    line = source.splitlines()[1]
    mutant = Mutant("one", "I1", TARGET, line, "planted")
    overlay(tmp_path / "tree", mutant)
    copy = (tmp_path / "tree" / TARGET).read_text(encoding="utf-8")
    other = tmp_path / "tree" / "relay/src/towpath/relay/ports.py"

    assert (source.replace(line, "planted"), True) == (copy, other.is_symlink())


# The import graph parses every module.
@pytest.mark.timeout(60)
def test_the_nearest_tests_of_a_module_come_first():
    """
    A test that imports the module precedes a test that imports it indirectly.
    """
    tests = ImportGraph().tests_of("schemas/src/towpath/schemas/position.py")
    direct = "tests/property/test_position.py"

    assert direct in tests
    assert tests.index(direct) < tests.index("tests/unit/relay/test_pipeline.py")


def test_a_long_proof_runs_in_several_forks(monkeypatch: pytest.MonkeyPatch):
    """
    All tests of a killed fork count as failing, so each fork runs only a few.
    """
    sizes = []

    class Fork:
        is_late = True

        def __init__(self, _mutant: None, tests: list[str], *, is_real: bool) -> None:
            assert not is_real
            self.tests = tests

        def end(self) -> Outcome:
            sizes.append(len(self.tests))
            failed = tuple(each for each in self.tests if each == "t::120")
            return Outcome(1 if failed else 0, failed, "")

    monkeypatch.setattr(campaign, "Run", Fork)
    tests = [f"t::{number}[x]" for number in range(100, 230)]

    assert {"t::120[x]"} == campaign.failing(tests, is_real=False)
    assert [50, 50, 30] == sizes


def test_tests_that_do_not_run_count_as_failing(monkeypatch: pytest.MonkeyPatch):
    """
    A fork that was killed cannot report its tests, so they count as failing.
    """

    class Killed:
        is_late = True

        def __init__(self, *_: object, is_real: bool) -> None:
            assert is_real

        def end(self) -> Outcome:
            return Outcome(None, (), "")

    monkeypatch.setattr(campaign, "Run", Killed)

    assert {"a::1[x]", "a::2"} == campaign.failing(["a::1[x]", "a::2"], is_real=True)
