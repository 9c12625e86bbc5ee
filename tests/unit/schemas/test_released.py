"""Released schemas: the files that the lock freezes, and the findings of each check."""

import json

import pytest

from towpath.schemas.compatibility import Level
from towpath.schemas.events import EventSchemaError, EventSchemas
from towpath.schemas.released import (
    AVRO,
    LOCK,
    HeldSchema,
    check_files,
    digest,
    lock_text,
    read_lock,
    registered,
    unreleased,
)
from towpath.schemas.schema_files import SchemaFile, parse_file


def post(*fields: dict, **more: object) -> dict:
    """Make a schema of posts with the given fields in addition to the id."""
    listed = [{"name": "post_id", "type": "long"}, *fields]
    return {
        "type": "record",
        "name": "PostPublished",
        "namespace": "blog",
        "fields": listed,
    } | more


def text(name: str, default: object = None) -> dict:
    """Make a text field with a default."""
    return {"name": name, "type": ["null", "string"], "default": default}


def files(*documents: dict) -> list[SchemaFile]:
    """Make the files of the versions of one event."""
    return [
        parse_file(f"post.v{number}.avsc", json.dumps(document))
        for number, document in enumerate(documents, start=1)
    ]


def lock(*released: SchemaFile) -> dict[str, str]:
    """Make a lock that freezes files."""
    return {file.name: digest(file) for file in released}


def in_registry(*documents: dict, first: int = 1) -> dict[str, list[HeldSchema]]:
    """Make the registry's versions of the event."""
    return {
        "blog.PostPublished": [
            HeldSchema(number, "AVRO", json.dumps(document))
            for number, document in enumerate(documents, start=first)
        ]
    }


def rules(findings) -> list[tuple[str, str]]:
    """Return the rule and the name of each finding."""
    return [(finding.rule, finding.name) for finding in findings]


def test_frozen_versions_that_are_compatible_have_no_finding():
    """
    Both versions are in the lock; the second has a new optional field.
    """
    both = files(post(), post(text("title")))

    assert [] == check_files(both, lock(*both))
    assert [] == unreleased(both, lock(*both))


@pytest.mark.parametrize(
    ("change", "rule"), [("edit", "edited"), ("remove", "removed")]
)
def test_a_released_file_that_is_changed_is_found(change, rule):
    """
    Even an edited ``doc`` counts, because the catalogue shows it.
    """
    both = files(post(), post(text("title")))
    now = files(post(), post(text("title"), doc="edited")) if change == "edit" else []
    [found] = [
        finding
        for finding in check_files(now or both[:1], lock(*both))
        if finding.name == "post.v2.avsc"
    ]

    assert rule == found.rule
    assert found.sentence.startswith("post.v2.avsc was ")
    assert found.cure.startswith("Restore the file")


def test_a_formatter_may_change_a_released_file():
    """
    The content is compared as JSON: whitespace and the order of keys may change.
    """
    [file] = files(post())
    reordered = json.dumps(dict(reversed(post().items())), indent=4) + "\n"

    assert [] == check_files([parse_file(file.name, reordered)], lock(file))


def test_the_order_of_fields_matters():
    """
    Avro writes fields in their order.
    """
    one, other = text("a"), text("b")
    [file] = files(post(one, other))

    found = check_files(files(post(other, one)), lock(file))

    assert [("edited", "post.v1.avsc")] == rules(found)


@pytest.mark.parametrize("numbers", [(2,), (1, 3), (1, 1)])
def test_versions_that_are_not_numbered_from_one_are_found(numbers):
    """
    A missing or repeated version would get a different number in the registry.
    """
    made = [
        parse_file(f"{letter}.v{number}.avsc", json.dumps(post(text(letter))))
        for letter, number in zip("ab", numbers, strict=False)
    ]
    if numbers == (1, 1):
        with pytest.raises(EventSchemaError, match="two schemas have this version"):
            check_files(made, {})
        return
    [found] = [f for f in check_files(made, {}) if f.rule == "version"]

    assert "blog.PostPublished" == found.name
    assert ", ".join(map(str, numbers)) in found.sentence


def test_a_version_that_repeats_an_earlier_one_is_found():
    """
    The registry would return the number of the first version.
    """
    again = files(post(), post(text("title")), post())

    assert [("repeated", "post.v3.avsc")] == [
        one for one in rules(check_files(again, {})) if one[0] == "repeated"
    ]


ITEMS = {
    "type": "array",
    "items": {"type": "enum", "name": "a-b", "symbols": ["x"]},
}


@pytest.mark.parametrize(
    ("document", "name"),
    [
        (post(name="Post-Published"), "Post-Published"),
        (post(namespace="my-blog"), "my-blog"),
        (post(name="string"), "string"),
        (post(aliases=["blog.2nd"]), "2nd"),
        (post(aliases=["2nd.Post"]), "2nd"),
        (post(name=".Post"), ".Post"),
        (post({"name": "größe", "type": "long"}), "größe"),
        (post({"name": "a.b", "type": "long"}), "a.b"),
        (post({"name": "kinds", "type": ["null", ITEMS]}), "a-b"),
        (post({"name": "kinds", "type": {"type": "map", "values": ITEMS}}), "a-b"),
        (post(text("title") | {"aliases": ["a b"]}), "a b"),
        (post({"name": "in", "type": post(name="a", namespace="b-c")}), "b-c"),
    ],
)
def test_a_name_that_avro_forbids_is_found_before_its_release(document, name):
    """
    Python's parser accepts it, but registries and clients in Java do not.
    """
    made = files(document)
    [found] = check_files(made, {})

    assert ("name", "post.v1.avsc") == (found.rule, found.name)
    assert repr(name) in found.sentence
    assert [] == check_files(made, lock(*made))


BYLINE = {"name": "by", "type": "string", "default": ""}
AUTHOR = {"type": "record", "name": "Au-thor", "fields": [BYLINE]}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (post(name="Post-Published"), post(text("title"), name="Post-Published")),
        (post(namespace="my-blog"), post(text("title"), namespace="my-blog")),
        (post(aliases=["a-b"]), post(text("title"), aliases=["a-b"])),
        (
            post(text("sub-title")),
            post(text("subtitle") | {"aliases": ["sub-title"]}),
        ),
        (
            post({"name": "author", "type": AUTHOR}),
            post(
                {
                    "name": "author",
                    "type": AUTHOR | {"name": "A", "aliases": ["Au-thor"]},
                }
            ),
        ),
    ],
)
def test_a_released_type_with_a_forbidden_name_can_have_another_version(first, second):
    """
    The name can no longer be changed, or only with the old name as an alias.
    """
    made = files(first, second)

    assert [] == check_files(made, lock(made[0]))
    assert {"name"} == {found.rule for found in check_files(made, {})}


def test_another_version_of_a_released_type_must_not_have_a_new_forbidden_name():
    """
    Names that a different type has released are not an excuse, either.
    """
    made = files(
        post(text("sub-title")), post(text("sub-title"), {**BYLINE, "name": "b-y"})
    )
    other = parse_file("other.v1.avsc", json.dumps(post(BYLINE, name="Other-Post")))
    same = parse_file("x.v1.avsc", json.dumps(post(text("sub-title"), name="X")))
    [further, foreign] = check_files([*made, other, same], lock(made[0], other))

    assert ("post.v2.avsc", "x.v1.avsc") == (further.name, foreign.name)
    assert "'b-y'" in further.sentence
    assert "'sub-title'" in foreign.sentence


MOVED = {"name": "Author", "namespace": "people", "aliases": ["my-blog.Author"]}
SHARED = AUTHOR | {"namespace": "blog", "fields": [BYLINE | {"name": "b-y"}]}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            post(name="Post-Published"),
            post(text("title"), name="blog.Post-Published", namespace=None),
        ),
        (
            post({"name": "by", "type": AUTHOR | {"name": "Author"}})
            | {"namespace": "my-blog"},
            post({"name": "by", "type": AUTHOR | MOVED}, namespace="my-blog"),
        ),
        (
            post(namespace="my-blog"),
            post(
                {"name": "by", "type": AUTHOR | {"name": "Author"}, "default": {}},
                namespace="my-blog",
            ),
        ),
        (post(namespace="my-blog"), post(namespace="my-blog", aliases=["Posted"])),
    ],
)
def test_a_released_name_is_recognized_by_its_full_name(first, second):
    """
    It may be written differently, or be an alias of a type that moved.
    """
    made = files(first, second)

    assert [] == check_files(made, lock(made[0]))


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(
            post({"name": "by", "type": "Author"}, references={"blog.Author": 1}),
            id="replaced",
        ),
        pytest.param(post({"name": "by", "type": SHARED}), id="inlined"),
    ],
)
def test_the_names_of_a_released_shared_type_are_accepted_in_other_files(second):
    """
    Neither a renamed shared type nor an event that inlines it can avoid them.
    """
    first = post({"name": "by", "type": "Au-thor"}, references={"blog.Au-thor": 1})
    renamed = SHARED | {"name": "Author", "aliases": ["Au-thor"]}
    shared = parse_file("shared.v1.avsc", json.dumps(SHARED))
    replacing = parse_file("author.v1.avsc", json.dumps(renamed))
    events = files(first, second)
    released = lock(shared, events[0])

    assert [] == [
        finding
        for finding in check_files([shared, replacing, *events], released)
        if finding.rule == "name"
    ]


@pytest.mark.parametrize(
    ("added", "name"),
    [
        (AUTHOR | {"namespace": "people"}, "Au-thor"),
        (AUTHOR | {"name": "b-y"}, "b-y"),
        (AUTHOR | {"name": "A", "namespace": "my-blog"}, "my-blog"),
    ],
)
def test_a_forbidden_full_name_that_no_released_type_has_is_found(added, name):
    """
    A type in a different namespace, or a field, is not an excuse.
    """
    author = {"name": "author", "type": AUTHOR}
    by = {"name": "b-y", "type": "string"}
    foreign = AUTHOR | {"name": "Author", "namespace": "my-blog"}
    before = [author, by, {"name": "foreign", "type": foreign}]
    more = {"name": "more", "type": ["null", added], "default": None}
    made = files(post(*before), post(*before, more))
    [found] = check_files(made, lock(made[0]))

    assert ("name", "post.v2.avsc") == (found.rule, found.name)
    assert repr(name) in found.sentence


@pytest.mark.parametrize("aliases", [None, 5, "Post"])
def test_aliases_that_are_not_a_list_are_found(aliases):
    """
    Python's parser ignores them, but the parsers of registries reject the schema.
    """
    [found] = check_files(files(post(aliases=aliases)), {})

    assert ("name", "post.v1.avsc") == (found.rule, found.name)
    assert "aliases that are not a list" in found.sentence


@pytest.mark.parametrize("aliases", [None, 5, "Post", [5]])
def test_a_version_after_wrong_aliases_is_compared(aliases):
    """
    Each file has its own finding, and no comparison raises a Python error.
    """
    both = files(post(aliases=aliases), post(text("title"), aliases=aliases))

    assert [("name", "post.v1.avsc"), ("name", "post.v2.avsc")] == rules(
        check_files(both, {})
    )


@pytest.mark.parametrize(
    "field",
    [
        {"type": "long", "namespace": "my-blog"},
        {"type": {"type": "long", "name": "a-b", "namespace": "my-blog"}},
        {"type": {"type": "array", "items": "long", "name": "a-b", "aliases": None}},
        {"type": {"type": "map", "values": {"type": "long", "name": "a-b"}}},
        {"type": "long", "items": {"type": "fixed", "name": "a-b", "size": 2}},
    ],
)
def test_an_attribute_without_meaning_has_no_forbidden_name(field):
    """
    Avro ignores attributes that it does not define for a kind of type.
    """
    assert [] == check_files(files(post({"name": "title", **field})), {})


@pytest.mark.parametrize(
    "damage", [{"type": {}}, {"fields": 5}, {"fields": [5]}, {"fields": None}]
)
def test_a_shared_type_that_no_event_uses_yet_may_be_damaged(damage):
    """
    It has not been parsed, so its names must be examined without a traceback.
    """
    author = {"type": "record", "name": "blog.Author", "fields": []}
    made = [
        parse_file("author.v1.avsc", json.dumps(author)),
        parse_file("author.v2.avsc", json.dumps(author | damage)),
        *files(post({"name": "by", "type": "Author"}, references={"blog.Author": 1})),
    ]

    assert [] == check_files(made, {})


def test_a_file_that_is_not_frozen_is_found():
    """
    The file can still be frozen, but until then it prevents a release.
    """
    first, second = files(post(), post(text("title")))

    assert [] == check_files([first, second], lock(first))
    assert [("unreleased", "post.v2.avsc")] == rules(
        unreleased([first, second], lock(first))
    )


def test_an_incompatible_version_is_found_at_the_level():
    """
    A field without a default breaks BACKWARD, but not FORWARD.
    """
    both = files(post(), post({"name": "title", "type": "string"}))
    [found] = check_files(both, {})

    assert ("compatibility", "blog.PostPublished:2") == (found.rule, found.name)
    assert "the field title was added without a default." in found.sentence
    assert "Give the field a default." == found.cure
    assert [] == check_files(both, {}, Level.FORWARD)


def test_a_written_lock_is_read_back(tmp_path):
    """
    The lock has a comment, and then one line per file, in the order of names.
    """
    released = {"b.v1.avsc": "2" * 64, "a.v1.avsc": "1" * 64}
    (tmp_path / LOCK).write_text(lock_text(released), encoding="utf-8")

    assert released == read_lock(tmp_path)
    assert [f"{'1' * 64}  a.v1.avsc", f"{'2' * 64}  b.v1.avsc"] == (
        (tmp_path / LOCK).read_text(encoding="utf-8").splitlines()[1:]
    )
    assert {} == read_lock(tmp_path / "none")


def test_a_broken_line_of_a_lock_is_refused(tmp_path):
    """
    A conflict marker, for example, would freeze nothing.
    """
    (tmp_path / LOCK).write_text("<<<<<<< HEAD of mine\n", encoding="utf-8")

    with pytest.raises(EventSchemaError, match="not a digest and a name"):
        read_lock(tmp_path)


FIRST, SECOND = post(), post(text("title"))
BROKEN = post({"name": "title", "type": "string"})


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((FIRST,), {}, []),
        ((FIRST, SECOND), in_registry(FIRST), []),
        ((FIRST, SECOND), in_registry(FIRST, SECOND), []),
        ((FIRST,), in_registry(post(doc="x")), [("registry", ":1")]),
        ((FIRST,), in_registry(FIRST, SECOND), [("registry", ":2")]),
        ((FIRST, SECOND), in_registry(SECOND, first=2), [("registry", ":1")]),
        (
            (FIRST, SECOND),
            in_registry(post({"name": "post_key", "type": "string"})),
            [("registry", ":1")],
        ),
        (
            (FIRST, post(text("title", None), text("more"))),
            in_registry(post({"name": "title", "type": "int"})),
            [("registry", ":1"), ("compatibility", ":2")],
        ),
        ((FIRST,), in_registry({"type": "bytes"}), [("registry", ":1")]),
    ],
)
def test_files_are_compared_with_the_registry(ours, theirs, expected):
    """
    Different content, a version on one side only, and incompatibility are found.
    """
    schemas = EventSchemas.from_files(files(*ours)).history
    found = rules(registered(schemas, theirs))

    assert [(rule, f"blog.PostPublished{name}") for rule, name in expected] == found


@pytest.mark.parametrize(
    ("level", "more"),
    [
        (Level.BACKWARD_TRANSITIVE, [("compatibility", "blog.PostPublished:3")]),
        (Level.BACKWARD, []),
    ],
)
def test_a_new_version_is_compared_with_those_of_the_level(level, more):
    """
    At a level that is not transitive, only the registry's last version counts.
    """
    third = post(text("title"), text("more"))
    schemas = EventSchemas.from_files(files(FIRST, SECOND, third)).history
    theirs = in_registry(post({"name": "title", "type": "int"}), SECOND)
    found = rules(registered(schemas, theirs, level))

    assert [("registry", "blog.PostPublished:1"), *more] == found


def test_a_version_of_a_different_kind_gives_one_finding():
    """
    The version exists, so it is not reported as missing; later ones are compared.
    """
    schemas = EventSchemas.from_files(files(post())).history
    both = HeldSchema(1, "PROTOBUF", "s"), HeldSchema(2, AVRO, json.dumps(post()))
    found = registered(schemas, {"blog.PostPublished": both})

    assert [
        ("registry", "blog.PostPublished:1"),
        ("registry", "blog.PostPublished:2"),
    ] == rules(found)


def test_a_different_kind_of_schema_is_reported():
    """
    A subject with Protobuf or JSON Schema is rejected, and the finding names the kind.
    """
    schemas = EventSchemas.from_files(files(post())).history
    theirs = {"blog.PostPublished": [HeldSchema(1, "PROTOBUF", "syntax = ...")]}
    [found] = registered(schemas, theirs)

    assert (
        "The registry holds blog.PostPublished:1 as PROTOBUF, which is not supported."
        == found.sentence
    )
