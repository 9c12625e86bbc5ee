"""Arrays, composites, maps, domains, enums and geometry: forms within forms."""

import json

import pytest

from towpath.relay.encode.types.choose import FormChooser
from towpath.relay.encode.types.form import Form, Modes, TypeFacts, TypeField
from towpath.relay.errors import MalformedMessageError
from towpath.settings.rows import Rows

NUMERIC_10_2 = ((10 << 16) | 2) + 4
MOOD, MOODS, PRICE, NESTED, PAIR, PAIRS, HSTORE, BOX, BOXES, GEOMETRY, UNKNOWN = range(
    90_000, 90_011
)
TYPES = {
    23: TypeFacts("int4", "integer"),
    25: TypeFacts("text", "text"),
    1007: TypeFacts("_int4", "integer[]", element_oid=23),
    1009: TypeFacts("_text", "text[]", element_oid=25),
    1231: TypeFacts("_numeric", "numeric[]", element_oid=1700),
    3807: TypeFacts("_jsonb", "jsonb[]", element_oid=3802),
    MOOD: TypeFacts("mood", "s.mood", "e", labels=("sad", "ok")),
    MOODS: TypeFacts("_mood", "s.mood[]", element_oid=MOOD),
    PRICE: TypeFacts("price", "s.price", "d", base_oid=1700, base_typmod=NUMERIC_10_2),
    NESTED: TypeFacts("dear", "s.dear", "d", base_oid=PRICE),
    PAIR: TypeFacts(
        "pair",
        "s.pair",
        "c",
        fields=(
            TypeField("n", 23, -1),
            TypeField("quoted name", 25, -1),
            TypeField("list", 1007, -1),
        ),
    ),
    PAIRS: TypeFacts("_pair", "s.pair[]", element_oid=PAIR),
    HSTORE: TypeFacts("hstore", "public.hstore"),
    603: TypeFacts("box", "box", delimiter=";"),
    1020: TypeFacts("_box", "box[]", element_oid=603),
    GEOMETRY: TypeFacts("geometry", "public.geometry"),
    UNKNOWN: TypeFacts("never", "s.never"),
}


def form(
    type_oid: int,
    typmod: int = -1,
    *,
    is_debezium: bool = False,
    reasons: list[str] | None = None,
    **rows: object,
) -> Form:
    """Choose a form."""
    modes = Modes(Rows.model_validate(rows), is_debezium)
    on_lost = [].append if reasons is None else reasons.append
    found = FormChooser(TYPES, modes, on_lost).of(type_oid, typmod)
    assert found is not None
    return found


def written(found: Form, text: str) -> object:
    """Write a text as JSON and parse it."""
    return json.loads(found.json(text.encode()))


@pytest.mark.parametrize(
    ("type_oid", "text", "expected"),
    [
        (1007, "{}", []),
        (1007, "{1,NULL,3}", [1, None, 3]),
        (1007, "[0:1]={1,2}", [1, 2]),
        (1007, "[-1:0][2:2]={{1},{2}}", [[1], [2]]),
        (1007, "{{1,2},{NULL,4}}", [[1, 2], [None, 4]]),
        (1007, "{{{1}},{{2}}}", [[[1]], [[2]]]),
        (1009, '{a,"b,c","","NULL",NULL}', ["a", "b,c", "", "NULL", None]),
        (1009, r'{"a\"b","c\\d","{e}"," f "}', ['a"b', "c\\d", "{e}", " f "]),
        (1009, '{"[0:1]={x}"}', ["[0:1]={x}"]),
        (1009, "{a=b}", ["a=b"]),
        (1009, '{"line\nbreak"}', ["line\nbreak"]),
        (3807, r'{"{\"a\": 1}"}', ['{"a": 1}']),
        (1020, "{(1,2),(0,0);(3,4),(1,1)}", ["(1,2),(0,0)", "(3,4),(1,1)"]),
        (MOODS, "{sad,ok}", ["sad", "ok"]),
    ],
)
def test_an_array_is_a_list_in_its_elements_form(
    type_oid: int, text: str, expected: object
):
    """
    Bounds, several dimensions, NULL and quoted NULL are recognized (B67).
    """
    assert expected == written(form(type_oid), text)


def test_an_array_with_a_schema_has_one_dimension():
    """
    With a fixed schema, the elements of all dimensions are flattened in order.
    """
    found = form(1007, format="json-schema")

    assert ([1, 2, None, 4], [1, 2, None, 4], "int32") == (
        written(found, "{{1,2},{NULL,4}}"),
        found.value(b"{{1,2},{NULL,4}}"),
        found.schema.items.kind if found.schema.items else None,
    )


def test_an_arrays_modifier_applies_to_its_elements():
    """
    numeric(10, 2)[] has elements with a scale of two.
    """
    found = form(1231, NUMERIC_10_2, decimals="precise")

    assert ["eA==", "AVQ="] == written(found, "{1.20,3.40}")


@pytest.mark.parametrize("text", [b"", b"{", b"{1", b"}", b"{1}}", b'{"a}', b'{"a"}x'])
def test_a_malformed_array_raises_one_error(text: bytes):
    """
    A truncated or overlong text raises MalformedMessageError.
    """
    with pytest.raises(MalformedMessageError):
        form(1009).json(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(1,a,{1})", {"n": 1, "quoted name": "a", "list": [1]}),
        ("(,,)", {"n": None, "quoted name": None, "list": None}),
        ('(1,"","{1,2}")', {"n": 1, "quoted name": "", "list": [1, 2]}),
        (
            '(1,"say ""hi"", (x)\\\\",)',
            {"n": 1, "quoted name": 'say "hi", (x)\\', "list": None},
        ),
    ],
)
def test_a_composite_is_an_object_of_its_fields(text: str, expected: object):
    """
    Fields have their names and forms.

    An empty field is NULL, and two quotes are an empty string.
    """
    assert expected == written(form(PAIR), text)


def test_composites_in_an_array_are_objects():
    """
    Nested quoting is removed level by level.
    """
    text = r'{"(1,\"a, \"\"b\"\"\",\"{1,2}\")",NULL}'

    assert [{"n": 1, "quoted name": 'a, "b"', "list": [1, 2]}, None] == written(
        form(PAIRS), text
    )


@pytest.mark.parametrize("text", ["(1,a)", "(1,a,{1},new)"])
def test_a_composite_with_a_wrong_number_of_fields_remains_text(text: str):
    """
    It may have been written for a different version of the type.
    """
    assert text == written(form(PAIR), text)


def test_a_composite_with_a_wrong_number_of_fields_is_fitted_to_its_schema():
    """
    With a fixed schema, surplus fields are dropped and logged; missing ones are null.
    """
    reasons: list[str] = []
    found = form(PAIR, reasons=reasons, format="avro")
    row = {"n": 1, "quoted name": "a", "list": [1]}

    assert (row, row | {"list": None}, 1) == (
        found.value(b"(1,a,{1},new)"),
        found.value(b"(1,a)"),
        len(reasons),
    )


@pytest.mark.parametrize("text", [b"", b"1", b"(1", b"(1)x", b'("a)', b'(a"b)'])
def test_a_malformed_composite_raises_one_error(text: bytes):
    """
    A truncated or overlong text raises MalformedMessageError.
    """
    with pytest.raises(MalformedMessageError):
        form(PAIR).json(text)


def test_a_domain_has_the_form_of_its_innermost_type():
    """
    A domain over a domain has the form and scale of the innermost type (T-46).
    """
    found = form(NESTED, decimals="precise")

    assert ("2", "AVQ=") == (found.schema.parameters["scale"], written(found, "3.40"))


def test_an_enums_schema_lists_its_labels_in_order():
    """
    The schema has the semantic name and the labels; the value is the label.
    """
    found = form(MOOD)

    assert ("io.debezium.data.Enum", {"allowed": "sad,ok"}, "ok") == (
        found.schema.name,
        dict(found.schema.parameters),
        written(found, "ok"),
    )


PAIRS_TEXT = r'"a"=>"1", "b"=>NULL, "k \"2\""=>"v, \\2"'
PAIRS_READ = {"a": "1", "b": None, 'k "2"': "v, \\2"}


def test_hstore_is_a_string_of_json_by_default():
    """
    By default an hstore is a string that contains a JSON object with its keys in order.
    """
    document = written(form(HSTORE), PAIRS_TEXT)
    assert isinstance(document, str)

    assert list(PAIRS_READ.items()) == list(json.loads(document).items())


def test_hstore_is_a_map_if_configured():
    """
    The map's values may be null; an empty hstore is an empty map.
    """
    found = form(HSTORE, hstore="map")

    assert (PAIRS_READ, {}, "map") == (
        written(found, PAIRS_TEXT),
        written(found, ""),
        found.schema.kind,
    )


@pytest.mark.parametrize("text", [b"a=>1", b'"a"', b'"a"=>', b'"a"=>"1";'])
def test_a_malformed_hstore_raises_one_error(text: bytes):
    """
    A truncated or overlong text raises MalformedMessageError.
    """
    with pytest.raises(MalformedMessageError):
        form(HSTORE).json(text)


@pytest.mark.parametrize(
    ("ewkb", "srid"),
    [
        ("0101000000000000000000F03F0000000000000040", None),
        ("0101000020E6100000000000000000F03F0000000000000040", 4326),
        ("0020000001000010E63FF00000000000004000000000000000", 4326),
    ],
)
def test_postgis_values_have_their_reference_system(ewkb: str, srid: int | None):
    """
    The bytes are unchanged; the reference system is read in either byte order.
    """
    found = form(GEOMETRY, is_debezium=True)

    assert {"wkb": bytes.fromhex(ewkb), "srid": srid} == found.value(ewkb.encode())


@pytest.mark.parametrize(("mode", "expected"), [("text", "abc"), ("bytes", "YWJj")])
def test_an_unknown_type_is_text_or_bytes(mode: str, expected: str):
    """
    A type without a rule of its own gets the configured form (T-49).
    """
    assert expected == written(form(UNKNOWN, unknown_types=mode), "abc")


@pytest.mark.parametrize("type_oid", [UNKNOWN, 603, 1020])
def test_an_unknown_type_can_be_left_out(type_oid: int):
    """
    An omitted unknown type has no form, and neither does an array of it.
    """
    modes = Modes(Rows.model_validate({"unknown_types": "omit"}), True)

    assert None is FormChooser(TYPES, modes, [].append).of(type_oid, -1)


def test_values_of_a_dropped_type_are_text():
    """
    Values of a dropped type remain text, however unknown types are configured.
    """
    assert "x" == written(form(123_456, unknown_types="omit"), "x")


def test_a_composite_is_bytes_if_unknown_types_are():
    """
    Debezium has no composite types: its consumers expect the text's bytes.
    """
    found = form(PAIR, unknown_types="bytes")

    assert ("bytes", "KDEsYSwp") == (found.schema.kind, written(found, "(1,a,)"))
