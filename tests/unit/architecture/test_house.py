"""The measures of ``make house`` do not exceed their ceilings, and are correct."""

import tomllib

import pytest

from house import __main__ as command
from house.measures import TABLE, Measure, measures, values, with_ceilings
from house.source import (
    clause_sentences,
    code_lines,
    functions_named,
    is_small,
    layers,
    module_of,
    private_accesses,
    repeated_classes,
    sink_ports,
    top_level_files,
    write_strategies,
)

TEXT = TABLE.read_text(encoding="utf-8")
WITH_CEILING = [measure for measure in measures(TEXT) if measure.ceiling is not None]


# The first test parses every module, which takes seconds on a busy machine.
@pytest.mark.timeout(60)
@pytest.mark.parametrize("measure", WITH_CEILING, ids=lambda measure: measure.name)
def test_a_measure_of_the_source_does_not_rise(measure: Measure):
    """
    No measure is above its ceiling in tests/house/measures.toml; ceilings only fall.
    """
    now = values()[measure.name]

    assert now is not None
    assert measure.ceiling is not None
    assert now <= measure.ceiling, f"{measure.title}: {now}"


@pytest.mark.timeout(60)
def test_every_measure_is_in_the_table():
    """
    Values and lines of the table correspond; only sizes and times lack a ceiling.
    """
    names = [measure.name for measure in measures(TEXT)]

    assert sorted(names) == sorted(values())
    sizes = {"source_files", "source_lines", "code_lines", "test_minutes"}
    assert sizes == {m.name for m in measures(TEXT) if m.ceiling is None}


def test_no_ceiling_is_below_its_goal():
    """
    A measure need not be better than its goal.
    """
    assert [] == [
        m.name for m in WITH_CEILING if m.goal is not None and m.ceiling < m.goal
    ]


PLANTED = """
[one]
many = { title = "many", before = 90, goal = 10, ceiling = 50 }
few = { title = "few", before = 9, goal = 5, ceiling = 8 }
more = { title = "more", before = 1, ceiling = 3 }
unknown = { title = "unknown", before = "", goal = 4 }
"""


def test_a_measures_ceiling_falls_to_its_value_or_goal_and_never_rises():
    """
    A ceiling falls to the value if that misses the goal, and otherwise to the goal.
    """
    found = {"many": 19.1, "few": 2.0, "more": 7.0, "unknown": None}
    lowered = tomllib.loads(with_ceilings(PLANTED, found))["one"]

    assert [20, 5, 3, None] == [line.get("ceiling") for line in lowered.values()]


def test_the_table_of_measures_shows_which_goals_are_reached():
    """
    Without a goal or a value, the column ``reached`` is empty.
    """
    found = {"many": 20, "few": 2, "more": 7, "unknown": None}
    rows = command.rows(measures(PLANTED), found)

    assert [False, True, None, None] == [row["reached"] for row in rows]
    assert 4 == command.table_of(rows).row_count


def module(text: str, path: str = "relay/src/towpath/relay/stream/a.py"):
    """Parse a planted module."""
    return module_of(path, text)


def test_a_small_file_is_short_and_has_at_most_one_class():
    """
    A file with 151 lines is not small, and neither is a file with two classes.
    """
    planted = ["x = 1\n" * 150, "x = 1\n" * 151, "class A: ...\nclass B: ...\n"]

    assert [True, False, False] == [is_small(module(text)) for text in planted]


def test_files_outside_every_package_of_a_member_are_loose():
    """
    Only files directly below the member's root count.
    """
    paths = ["relay/src/towpath/relay/loop.py", "relay/src/towpath/relay/wal/a.py"]
    found = top_level_files([module("", path) for path in paths], "relay")

    assert ["loop.py"] == [path.name for path in found]


def test_a_class_name_is_repeated_only_within_its_member():
    """
    A different member may have a class with the same name.
    """
    paths = ["relay/src/a.py", "relay/src/b.py", "sinks/src/a.py"]
    planted = [module("class Writer: ...\n", path) for path in paths]

    assert [("relay", "Writer")] == repeated_classes(planted)


def test_functions_are_counted_by_name():
    """
    Methods and nested functions count too.
    """
    text = "class A:\n  def _tell(self):\n    def _tell(): ...\n    _tell()\n"

    assert 2 == functions_named([module(text)], "_tell")


def test_docstring_sentences_that_begin_with_a_clause_are_found():
    """
    They are found anywhere in a paragraph or an entry, but not in comments.
    """
    text = '''"""Who reads. It says what it reads; Whatever else."""
# What a comment says.
def f(a):
    """
    Read a.

    Of all that there is.

    Args:
        a: What is read.
    """
'''

    assert 4 == len(clause_sentences(module(text)))


def test_lines_of_code_exclude_docstrings_comments_and_blank_lines():
    """
    A comment after code and a string that is not a docstring count as code.
    """
    text = '"""A\n\nB."""\n\n# c\nx = 1  # d\ndef f():\n    """E."""\n    return "f"\n'

    assert 3 == code_lines(module(text))


def test_private_names_of_other_objects_are_counted():
    """
    Names of self, dunder names and methods of named tuples are not counted.
    """
    text = "self._a\nb._c\nd()._e._f\ng.__dict__\nh._replace(i=1)\n"

    assert ["_c", "_f", "_e"] == private_accesses(module(text))


def test_layers_of_a_contract_are_counted():
    """
    Only the layers of the named contract are counted.
    """
    contracts = [{"id": "a", "layers": ["x"]}, {"id": "b", "layers": ["x", "y | z"]}]

    assert 2 == layers({"tool": {"importlinter": {"contracts": contracts}}}, "b")


PORTS = """
class Sink(Protocol):
    def open(self): ...
    def apply(self, batch): ...
@runtime_checkable
class Erasing(Protocol):
    def erase(self): ...
@runtime_checkable
class InOrder(Protocol):
    is_in_order: bool
class Repairs(Protocol):
    def request(self): ...
"""


def test_methods_and_flags_of_a_sink_are_read_from_its_protocols():
    """
    They come from ``Sink``, and from abilities that are checked at run time.
    """
    assert (("open", "apply", "erase"), ("is_in_order",)) == sink_ports(module(PORTS))


WRITERS = """
class Writes(Protocol):
    def write(self, rows, batch_id): ...
class Whole:
    def write(self, rows, batch_id):
        if not rows:
            return self._writer.write(rows, batch_id)
        return Result(rows)
class Looks:
    def write(self, rows, batch_id):
        self._look()
        return self._writer.write(rows, batch_id)
class Silent:
    def write(self, rows, batch_id):
        self._client.send(rows)
class Early:
    def write(self, rows, batch_id):
        if rows:
            self._client.send(rows)
            return
class File:
    def write(self, text):
        return len(text)
"""


def test_write_strategies_are_classes_that_write_a_batch_themselves():
    """
    Protocols, classes that pass a batch on, and writers of other things do not count.
    """
    assert ["Whole", "Silent", "Early"] == write_strategies([module(WRITERS)])
