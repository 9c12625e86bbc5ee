"""``towpath schema freeze`` and ``check``, as a developer or CI would run them."""

import json
from pathlib import Path

import pytest
import requests

from towpath.cli.app import run

POST = {
    "type": "record",
    "name": "PostPublished",
    "fields": [{"name": "post_id", "type": "long"}],
}
TITLE = {"name": "title", "type": ["null", "string"], "default": None}
WITH_TITLE = POST | {"fields": [*POST["fields"], TITLE]}
AUTHOR = {
    "type": "record",
    "name": "Author",
    "fields": [{"name": "name", "type": "string"}],
}


class Folder:
    """A folder of schemas in one namespace."""

    def __init__(self, path: Path, namespace: str) -> None:
        self.path = path
        self.namespace = namespace
        path.mkdir()

    def write(self, name: str, document: dict) -> str:
        """Write a schema to a file, and return its text."""
        text = json.dumps({"namespace": self.namespace, **document})
        (self.path / name).write_text(text, encoding="utf-8")
        return text

    @property
    def subject(self) -> str:
        """The subject of ``PostPublished``."""
        return f"{self.namespace}.PostPublished"


@pytest.fixture
def folder(tmp_path, unique) -> Folder:
    """Provide an empty folder."""
    return Folder(tmp_path / "schemas", unique)


def register(url: str, subject: str, text: str, **more: object) -> None:
    """Register a schema as a different tool would."""
    response = requests.post(
        f"{url}/subjects/{subject}/versions",
        json={"schemaType": "AVRO", "schema": text, **more},
        timeout=30,
    )
    assert response.ok, response.text


def document(capsys, *arguments: object) -> tuple[int, dict]:
    """Run a command with ``--json``; return its exit code and its document."""
    code = run(["schema", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def rules(found: dict) -> list[tuple[str, str]]:
    """Return the rule and the name of each finding in a document."""
    return [(one["rule"], one["name"]) for one in found["findings"]]


def test_a_release_is_frozen_and_an_edit_is_refused(folder, capsys):
    """
    An edited version is reported and not frozen; new versions are added to the lock.
    """
    folder.write("post_published.v1.avsc", POST)
    assert 1 == run(["schema", "check", str(folder.path)])
    assert "Run towpath schema freeze" in capsys.readouterr().out

    assert (0, ["post_published.v1.avsc"]) == tuple(
        one if isinstance(one, int) else one["frozen"]
        for one in document(capsys, "freeze", folder.path)
    )
    lock = (folder.path / "released.lock").read_text(encoding="utf-8")
    assert 0 == run(["schema", "check", str(folder.path)])
    assert "1 schemas, nothing wrong" in capsys.readouterr().out

    folder.write("post_published.v1.avsc", WITH_TITLE)
    folder.write("post_published.v2.avsc", WITH_TITLE)
    code, found = document(capsys, "freeze", folder.path)
    assert (1, []) == (code, found["frozen"])
    assert ("edited", "post_published.v1.avsc") in rules(found)
    assert lock == (folder.path / "released.lock").read_text(encoding="utf-8")

    folder.write("post_published.v1.avsc", POST)
    assert 0 == run(["schema", "freeze", str(folder.path)])
    assert "frozen: post_published.v2.avsc" in capsys.readouterr().out
    assert lock in (folder.path / "released.lock").read_text(encoding="utf-8")


def test_an_incompatible_version_fails_with_a_reason_and_a_remedy(folder, capsys):
    """
    The compatibility level can be given by the registry's name for it.
    """
    folder.write("post_published.v1.avsc", POST)
    renamed = [{"name": "id", "type": "long"}]
    folder.write("post_published.v2.avsc", POST | {"fields": renamed})
    command = ["schema", "freeze", str(folder.path)]

    assert 1 == run(command)
    subject = folder.subject
    assert (
        f"compatibility: {subject}:2 cannot read what {subject}:1 wrote: from version "
        "1 to 2, the field id was added without a default.\n"
        "  cure: Give the field a default.\n"
    ) == capsys.readouterr().out
    assert 0 == run([*command, "--compatibility", "NONE"])


def test_a_folder_in_a_different_schema_language_is_refused(folder, capsys):
    """
    The error names the file and the unsupported language.
    """
    (folder.path / "post.v1.proto").write_text("", encoding="utf-8")

    assert 2 == run(["schema", "check", str(folder.path)])
    assert "post.v1.proto: Protobuf is not supported" in capsys.readouterr().err


@pytest.mark.integration
@pytest.mark.timeout(90)
def test_files_are_compared_with_a_real_registry(folder, stack, capsys):
    """
    The subject is in turn unknown, behind the files, equal, ahead, and different.
    """
    first = folder.write("post_published.v1.avsc", POST)
    second = folder.write("post_published.v2.avsc", WITH_TITLE)
    assert 0 == run(["schema", "freeze", str(folder.path)])
    capsys.readouterr()
    url, subject = stack.registry_url, folder.subject
    command = ("check", folder.path, "--registry", url)

    assert (0, []) == code_and_rules(document(capsys, *command))
    register(url, subject, first)
    assert (0, []) == code_and_rules(document(capsys, *command))
    register(url, subject, second)
    assert (0, []) == code_and_rules(document(capsys, *command))
    added = {"name": "more", "type": "int", "default": 0}
    ahead = WITH_TITLE | {"fields": [*WITH_TITLE["fields"], added]}
    register(url, subject, json.dumps({"namespace": folder.namespace, **ahead}))
    assert (1, [("registry", f"{subject}:3")]) == code_and_rules(
        document(capsys, *command)
    )
    folder.write("post_published.v3.avsc", WITH_TITLE | {"doc": "another"})
    assert 0 == run(["schema", "freeze", str(folder.path)])
    capsys.readouterr()
    assert (1, [("registry", f"{subject}:3")]) == code_and_rules(
        document(capsys, *command)
    )


@pytest.mark.integration
@pytest.mark.timeout(90)
def test_references_of_the_registry_and_of_the_folder_are_the_same(
    folder, stack, capsys
):
    """
    A tool may register shared types as references, while the files contain them.
    """
    author = folder.write("author.v1.avsc", AUTHOR)
    fields = [*POST["fields"], {"name": "author", "type": "Author"}]
    name = f"{folder.namespace}.Author"
    folder.write(
        "post_published.v1.avsc", POST | {"references": {name: 1}, "fields": fields}
    )
    assert 0 == run(["schema", "freeze", str(folder.path)])
    capsys.readouterr()
    url = stack.registry_url
    register(url, name, author)
    register(
        *(url, folder.subject),
        json.dumps({"namespace": folder.namespace, **POST, "fields": fields}),
        references=[{"name": name, "subject": name, "version": 1}],
    )

    command = ("check", folder.path, "--registry", url)
    assert (0, []) == code_and_rules(document(capsys, *command))


@pytest.mark.integration
@pytest.mark.timeout(90)
def test_a_json_schema_in_the_registry_is_reported(folder, stack, capsys):
    """
    A subject with schemas of a different type cannot hold the event's schemas.
    """
    folder.write("post_published.v1.avsc", POST)
    assert 0 == run(["schema", "freeze", str(folder.path)])
    capsys.readouterr()
    url = stack.registry_url
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    register(url, folder.subject, json.dumps(schema), schemaType="JSON")

    assert 1 == run(["schema", "check", str(folder.path), "--registry", url])
    assert f"holds {folder.subject}:1 as JSON, which" in capsys.readouterr().out


def test_an_unreachable_registry_gives_a_separate_exit_code(folder, capsys):
    """
    A CI step must neither pass nor blame the schemas.
    """
    folder.write("post_published.v1.avsc", POST)
    command = ["schema", "check", str(folder.path), "--registry", "http://127.0.0.1:1"]

    assert 3 == run(command)
    assert "schema registry cannot be reached" in capsys.readouterr().err


def code_and_rules(result: tuple[int, dict]) -> tuple[int, list[tuple[str, str]]]:
    """Return the exit code, and the rule and name of each finding."""
    return result[0], rules(result[1])
