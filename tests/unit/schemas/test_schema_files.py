"""The schema files of a folder: shared types, and files in other languages."""

import json
import pickle

import pytest

from towpath.schemas.events import EventSchemaError, EventSchemas, InvalidEventError
from towpath.schemas.released import read_lock
from towpath.schemas.schema_files import parse_file, read_files

COUNTRY = {
    "type": "enum",
    "name": "Country",
    "namespace": "geo",
    "symbols": ["AT", "CH"],
    "default": "AT",
}
AUTHOR = {
    "type": "record",
    "name": "Author",
    "namespace": "blog",
    "references": {"geo.Country": 1},
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "country", "type": "geo.Country"},
    ],
}
POST = {
    "type": "record",
    "name": "PostPublished",
    "namespace": "blog",
    "references": {"blog.Author": 1, "geo.Country": 1},
    "fields": [
        {"name": "authors", "type": {"type": "array", "items": "Author"}},
        {"name": "reviewer", "type": ["null", "blog.Author"], "default": None},
        {"name": "by_role", "type": {"type": "map", "values": "Author"}},
        {"name": "printed_in", "type": "geo.Country", "doc": "Where."},
    ],
}
ADA = {"name": "Ada", "country": "CH"}
PAYLOAD = {"authors": [ADA], "by_role": {"editor": ADA}, "printed_in": "AT"}


def read(**documents) -> EventSchemas:
    """Make schemas from documents by file name, with ``_v`` for the version."""
    return EventSchemas.from_files(
        parse_file(f"{name.replace('_v', '.v')}.avsc", json.dumps(document))
        for name, document in documents.items()
    )


def test_shared_types_are_part_of_the_events_that_reference_them():
    """
    Records and enums of other files are checked, too; only the event is an event type.
    """
    schemas = read(post_v1=POST, author_v1=AUTHOR, country_v1=COUNTRY)

    assert ["PostPublished"] == list(schemas.newest)
    assert "blog.PostPublished:1" == schemas.check("PostPublished", PAYLOAD).reference
    with pytest.raises(InvalidEventError) as raised:
        schemas.check(
            "PostPublished", PAYLOAD | {"by_role": {"x": ADA | {"country": "DE"}}}
        )
    assert ("by_role.x.country", "is not one of AT, CH") == (
        *(raised.value.field, raised.value.reason),
    )


def test_the_text_of_an_event_with_shared_types_is_complete():
    """
    The registry, and a process that has only the text, need no other file.
    """
    [schema] = read(post_v1=POST, author_v1=AUTHOR, country_v1=COUNTRY).history
    document = json.loads(schema.text)

    assert "references" not in document
    assert "blog.Author" == document["fields"][2]["type"]["values"]
    assert (
        "geo.Country"
        == document["fields"][0]["type"]["items"]["fields"][1]["type"]["name"]
    )
    assert schema == pickle.loads(pickle.dumps(schema))  # noqa: S301 - our own


def test_a_released_event_keeps_the_version_of_its_shared_type():
    """
    A new version of the shared type changes only the events that reference it.
    """
    second = AUTHOR | {
        "fields": [*AUTHOR["fields"], {"name": "born", "type": "int", "default": 0}]
    }
    newer = POST | {"references": {"blog.Author": 2, "geo.Country": 1}}
    schemas = read(
        post_v1=POST,
        post_v2=newer,
        author_v1=AUTHOR,
        author_v2=second,
        country_v1=COUNTRY,
    )
    fields = [
        len(json.loads(schema.text)["fields"][0]["type"]["items"]["fields"])
        for schema in schemas.history
    ]

    assert [2, 3] == fields


@pytest.mark.parametrize(
    ("documents", "reason"),
    [
        ({"post_v1": POST}, "post.v1.avsc: no file has version 1 of blog.Author"),
        (
            {"post_v1": {**POST, "references": {}}, "country_v1": COUNTRY},
            (
                "post.v1.avsc: the schema does not define type blog.Author: "
                "name it in references"
            ),
        ),
        (
            {
                "post_v1": {**POST, "references": {"blog.Author": 1}},
                "author_v1": {**AUTHOR, "references": {}},
            },
            (
                "post.v1.avsc: the schema does not define type geo.Country: "
                "name it in references"
            ),
        ),
        (
            {
                "post_v1": {**POST, "references": {"blog.Author": 1, "geo.Country": 2}},
                "author_v1": AUTHOR,
                "country_v1": COUNTRY,
                "country_v2": {**COUNTRY, "symbols": ["AT"]},
            },
            "post.v1.avsc: references lead to two versions of geo.Country",
        ),
        (
            {
                "post_v1": POST,
                "author_v1": {**AUTHOR, "references": {"blog.PostPublished": 1}},
            },
            "author.v1.avsc: the reference to blog.PostPublished leads back to itself",
        ),
        (
            {"post_v1": {**POST, "references": ["blog.Author"]}},
            'post.v1.avsc: references must be {"<full name>": <version>}',
        ),
        (
            {
                "post_v1": {**POST, "references": {"geo.Country": 1}, "fields": []},
                "country_v1": {**COUNTRY, "type": "string"},
            },
            "post.v1.avsc: only records, enums and fixed types can be shared",
        ),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused(documents, reason):
    """
    The error has the file and the type.
    """
    with pytest.raises(EventSchemaError) as raised:
        read(**documents).check("PostPublished", PAYLOAD)

    assert str(raised.value).startswith(reason)


def test_a_cycle_of_shared_types_is_refused():
    """
    Types that only reference each other leave no event in the folder.
    """
    documents = {
        "event_v1": POST,
        "author_v1": {**AUTHOR, "references": {"geo.Country": 1}},
        "country_v1": {**COUNTRY, "references": {"blog.Author": 1}},
    }

    with pytest.raises(EventSchemaError, match="leads back to itself"):
        read(**documents)


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("order_placed.v1.proto", "Protobuf"),
        ("order_placed.v1.json", "JSON Schema"),
        ("order.schema.json", "JSON Schema"),
        ("order.jsonschema", "JSON Schema"),
        ("order.avdl", "Avro IDL"),
        ("order.avpr", "Avro's protocols"),
    ],
)
def test_a_file_of_another_language_is_refused_by_name(tmp_path, name, language):
    """
    The file is not silently ignored, because its events would then have no schema.
    """
    (tmp_path / name).write_text("", encoding="utf-8")
    (tmp_path / "package.json").write_text("{}", encoding="utf-8")

    with pytest.raises(EventSchemaError) as raised:
        EventSchemas.from_folder(tmp_path)

    assert f"{name}: {language} is not supported: event schemas are Avro" == str(
        raised.value
    )
    assert "be named <name>.v<n>.avsc" in raised.value.remedy
    assert 2 == raised.value.exit_code


@pytest.mark.parametrize(
    "document", [{"type": "object", "properties": {}}, {"$schema": "x"}]
)
def test_a_json_schema_in_the_file_of_an_avro_schema_is_refused(document):
    """
    The content is examined, not only the file's name.
    """
    with pytest.raises(EventSchemaError, match=r"^a\.v1\.avsc: JSON Schema is not"):
        parse_file("a.v1.avsc", json.dumps(document))


@pytest.mark.parametrize("name", ["._Post.v1.avsc", "released.lock"])
def test_a_file_that_is_not_text_is_refused_by_name(tmp_path, name):
    """
    Some systems put a binary file beside each file in a folder.
    """
    (tmp_path / "Country.v1.avsc").write_text(json.dumps(COUNTRY), "utf-8")
    (tmp_path / name).write_bytes(b"\x00\x05\x16\x07\xff")
    with pytest.raises(EventSchemaError, match=name):
        (read_files(tmp_path), read_lock(tmp_path))


def test_a_link_that_leads_nowhere_is_refused_by_name(tmp_path):
    """
    Some editors lock an open file with such a link.
    """
    (tmp_path / ".#Post.v1.avsc").symlink_to("me@host.7")
    with pytest.raises(EventSchemaError, match="Post"):
        read_files(tmp_path)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gone", "there is no such folder of event schemas"),
        ("file", "there is no such folder of event schemas"),
        ("n" * 300, "the folder cannot be read: File name too long"),
    ],
)
def test_a_folder_that_cannot_be_listed_is_refused_by_name(tmp_path, name, reason):
    """
    If the folder may exist, the reason is the operating system's.
    """
    (tmp_path / "file").touch()
    with pytest.raises(EventSchemaError, match=f"{name}: {reason}"):
        read_files(tmp_path / name)


@pytest.mark.parametrize("text", ['{"doc": "\\ud800"}', "[" * 100_000])
def test_a_schema_that_has_no_digest_is_refused_by_name(text):
    """
    Its text cannot be encoded, or is nested too deeply.
    """
    with pytest.raises(EventSchemaError, match=r"a\.v1\.avsc: the schema cannot be"):
        parse_file("a.v1.avsc", text)


# Lists in lists, and lists of values that may be null.
_LISTS = '{"type": "array", "items": ' * 700 + '"string"' + "}" * 700
_UNIONS = '["null", {"type": "array", "items": ' * 350 + '"string"' + "}]" * 350


@pytest.mark.parametrize("nested", [_LISTS, _UNIONS])
@pytest.mark.parametrize("is_shared", [False, True])
def test_a_schema_that_is_nested_too_deeply_is_refused_by_name(nested, is_shared):
    """
    Its JSON can be read, but cannot be compiled into a check.
    """
    field = f'{{"name": "f", "type": {nested}}}'
    text = f'{{"type": "record", "name": "Deep", "fields": [{field}]}}'
    files = [parse_file("deep.v1.avsc", text)]
    if is_shared:
        user = {"type": "record", "name": "User", "references": {"Deep": 1}}
        user["fields"] = [{"name": "deep", "type": "Deep"}]
        files.append(parse_file("user.v1.avsc", json.dumps(user)))
    name = "user" if is_shared else "deep"

    with pytest.raises(EventSchemaError, match=rf"{name}\.v1\.avsc: the schema cannot"):
        EventSchemas.from_files(files)
