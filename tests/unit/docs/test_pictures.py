"""The pictures of the documentation match the sources from which they are drawn."""

import xml.etree.ElementTree as ET

import pytest

from support.pages import DOCS, ROOT, imported_program, pages

FOLDER = DOCS / "pictures"
SOURCES = sorted(FOLDER.glob("*.toml"))
PLOTTED = sorted(FOLDER.glob("*.json"))


@pytest.fixture(scope="module")
def draw():
    """Import the program that draws them."""
    return imported_program(FOLDER / "draw.py")


# A plot imports a library, which takes seconds on a busy machine.
@pytest.mark.timeout(60)
@pytest.mark.parametrize("source", [*SOURCES, *PLOTTED], ids=lambda source: source.stem)
def test_a_committed_picture_matches_its_source(draw, source):
    """
    After a change to a source, run make docs.
    """
    committed = source.with_suffix(".svg").read_text(encoding="utf-8")

    assert committed == draw.drawn(source)
    assert source in draw.sources()


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_picture_is_within_its_bounds(draw, source):
    """
    Each picture is well-formed XML with a title, and its boxes are within its size.
    """
    root = ET.fromstring(draw.draw(source.read_text(encoding="utf-8")))  # noqa: S314 - ours
    spaces = {"svg": "http://www.w3.org/2000/svg"}
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    title = root.find("svg:title", spaces)

    assert title is not None
    assert title.text
    for box in root.findall("svg:rect", spaces):
        assert 0 <= float(box.attrib["x"]) <= width - float(box.attrib["width"])
        assert 0 <= float(box.attrib["y"]) <= height - float(box.attrib["height"])


def test_every_picture_is_shown_on_a_page_and_has_a_source():
    """
    No picture is unused, and none is drawn by hand.
    """
    text = "".join(page.read_text(encoding="utf-8") for page in pages())
    drawn = {path.stem for path in FOLDER.glob("*.svg")}

    assert drawn == {source.stem for source in [*SOURCES, *PLOTTED]}
    assert [] == [name for name in drawn if f"pictures/{name}.svg" not in text]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('["a", "cloud", 0, 0, 90, 40, "a"]', "unknown kind cloud"),
        ('["a", "step", 0, 0, 40, 40, "longer than its box"]', "too wide"),
    ],
)
def test_a_source_that_cannot_be_drawn_is_refused(draw, row, reason):
    """
    A box of an unknown kind, and text wider than its box, are rejected.
    """
    source = f'title = "t"\nsize = [100, 100]\nboxes = [{row}]\narrows = []\n'

    with pytest.raises(draw.PictureError, match=reason):
        draw.draw(source)


def test_make_docs_draws_the_pictures():
    """
    The target in the Makefile runs the program that the tests use.
    """
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert "docs/pictures/draw.py" in makefile
