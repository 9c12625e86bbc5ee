"""The glossary matches the identifiers of the source."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from support.glossary import (
    CODE,
    GLOSSARY,
    MEMBERS,
    TESTS,
    banned,
    identifiers,
    identifiers_of,
    replaced_words,
    rows,
    used,
    words_of,
)
from support.pages import ROOT, name_of, pages, plain

# Earlier versions wrote these words into files that are still read.
WRITTEN_EARLIER = {"owed", "owed.json"}
# These files plant banned words.
EXEMPT = {Path(__file__), Path(__file__).with_name("test_logs.py")}


def banned_words_of(text: str) -> list[str]:
    """List the banned words in the prose of a page."""
    words = re.findall(r"[a-z]+", plain(text).lower())
    return sorted(banned().intersection(words))


def lines_with(words: set[str], paths: Iterable[Path]) -> Iterator[str]:
    """Yield the lines of files that contain any of the words, with file and number."""
    any_of = re.compile(rf"\b({'|'.join(sorted(words))})\b", re.IGNORECASE)
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            if any_of.search(line):
                yield f"{path.name}:{number}: {line.strip()}"


# The tests parse every module, which takes seconds on a busy machine.
@pytest.mark.timeout(60)
def test_every_identifier_that_the_glossary_names_exists():
    """
    The column "In code" of a term names identifiers in the source.
    """
    words = {word for name in identifiers() for word in words_of(name)}
    missing = [
        (term, name)
        for term, _, code, _ in rows()
        for name in CODE.findall(code)
        if name not in identifiers() and name not in words
    ]

    assert missing == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("modules", [MEMBERS, TESTS])
def test_no_identifier_has_a_banned_word(modules):
    """
    Words that the code has left behind do not return.
    """
    assert {} == used(banned(), identifiers(modules))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("modules", [MEMBERS, TESTS])
def test_no_text_in_the_code_has_a_banned_word(modules):
    """
    Docstrings, comments and strings use the field's words, just as identifiers do.
    """
    paths = set(ROOT.glob(modules)) - EXEMPT

    assert [] == list(lines_with(replaced_words() - WRITTEN_EARLIER, paths))


def test_no_page_uses_a_banned_word():
    """
    The prose of the pages follows the glossary, just as the code does.
    """
    found = [
        f"{name_of(page)}: {word}"
        for page in pages()
        if page != GLOSSARY
        for word in banned_words_of(page.read_text(encoding="utf-8"))
    ]

    assert found == []


def test_a_planted_word_in_a_page_is_found():
    """
    Words count in prose, but not in code spans, blocks and longer words.
    """
    text = "It was told anew: `told` is untold.\n```sh\ntold\n```\n"

    assert ["anew", "told"] == banned_words_of(text)


def test_a_planted_word_in_a_text_in_the_code_is_found(tmp_path):
    """
    Whole words count, in any case.
    """
    path = tmp_path / "a.py"
    path.write_text("untold = 1\n  # Told again.\n", encoding="utf-8")

    assert ["a.py:2: # Told again."] == list(lines_with({"told", "anew"}, [path]))


def test_each_term_has_only_one_row():
    """
    No term is explained twice, and no term is also a banned word.
    """
    terms = [term for row in rows() for term in re.findall(r"\*\*(.+?)\*\*", row[0])]

    assert len(terms) > 40
    assert len(terms) == len(set(terms))
    assert set() == {term.lower() for term in terms} & banned()


def test_a_planted_identifier_is_found():
    """
    Words count in every spelling of an identifier, but only as whole words.
    """
    source = "class ErrandDesk:\n    def told_of(self, ears): self.toldest = toll_d\n"
    found = used({"errand", "desk", "told", "ears"}, frozenset(identifiers_of(source)))

    assert found == {
        "errand": {"ErrandDesk"},
        "desk": {"ErrandDesk"},
        "told": {"told_of"},
        "ears": {"ears"},
    }
