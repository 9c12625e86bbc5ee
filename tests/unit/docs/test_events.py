"""The catalogue of the shop's events matches the shop."""

import re
import shlex

import pytest

from support.pages import DOCS
from towpath.cli.app import run
from towpath.schemas.events import EventSchemas

SHOP = "towpath.services.orders.events:shop_events"


def test_the_page_lists_the_events_of_the_shop(capsys):
    """
    After a change to an event, run make docs. No service is left out.
    """
    makefile = (DOCS.parent / "Makefile").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^CATALOGUE := ((?:.*\\\n)*.*)", makefile, re.MULTILINE)
    arguments = shlex.split(listed.replace("\\\n", " ").partition("--output")[0])
    folders = (DOCS.parent / "services/src/towpath/services").glob("*/schemas")
    types = [name for one in folders for name in EventSchemas.from_folder(one).newest]

    assert 0 == run(["schema", "catalogue", *arguments])
    page = (DOCS / "events.md").read_text(encoding="utf-8")
    assert page == capsys.readouterr().out
    assert sorted(types) == re.findall(r"^## (\w+)$", page, re.MULTILINE)
    assert len(types) > 20


@pytest.mark.parametrize(
    ("route_by", "facts"),
    [
        ("aggregate_type", "aggregate `customer`, topic `events.customer`."),
        ("tenant", "aggregate `customer`."),
    ],
)
def test_topics_follow_the_configuration(route_by, facts, tmp_path, capsys):
    """
    The relay's template names the topic of an aggregate, unless a column chooses it.
    """
    file = tmp_path / "towpath.toml"
    file.write_text(
        "version = 1\n[[source]]\ndsn = 'postgresql://unused'\n"
        "[kafka]\nbootstrap_servers = 'u:1'\n"
        "[relay.outbox]\ntopic = 'events.{aggregate_type}'\n"
        f"route_by = '{route_by}'\n",
        encoding="utf-8",
    )
    output = tmp_path / "events.md"
    options = ["--events", SHOP, "--config", str(file), "--output", str(output)]

    assert 0 == run(["schema", "catalogue", *options])
    assert f"version 1; {facts}" in output.read_text(encoding="utf-8")
    assert not capsys.readouterr().out


def test_a_folder_alone_has_a_catalogue_without_aggregates(capsys):
    """
    The schemas alone do not name the aggregates.
    """
    folder = DOCS / "examples/blog/schemas"

    assert 0 == run(["schema", "catalogue", str(folder)])
    assert "| [PostPublished](#postpublished) |  |  | 1 |" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["catalogue", "freeze"])
def test_a_file_that_cannot_be_written_is_reported(command, tmp_path, capsys):
    """
    The command exits with 2, as for any wrong argument.
    """
    folder = tmp_path / "schemas"
    (folder / "released.lock").mkdir(parents=True)
    text = '{"type": "record", "name": "A", "fields": []}'
    (folder / "A.v1.avsc").write_text(text, encoding="utf-8")
    output = str(tmp_path / "none" / "events.md")
    more = ["--output", output] if command == "catalogue" else []

    assert 2 == run(["schema", command, str(folder), *more])
    file = output if more else str(folder / "released.lock")
    assert f"error: {file}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("import_path", "reason"),
    [
        ("no.module:events", "cannot be imported: No module named 'no'"),
        ("towpath.outbox:none", "cannot be imported: module"),
        ("towpath.outbox", "cannot be imported"),
        (".outbox:events", "must give the module's full name"),
        ("towpath.outbox.plain:Any", "is not an Events object of towpath.outbox"),
        ("towpath.outbox:record", "is a function that needs arguments"),
        # A compiled function may have no signature.
        ("builtins:vars", "is not an Events object of towpath.outbox"),
        ("builtins:max", "cannot be called without arguments: max expected"),
    ],
)
def test_events_that_cannot_be_imported_are_a_wrong_argument(
    import_path, reason, capsys
):
    """
    The error names the given object and the reason.
    """
    assert 2 == run(["schema", "catalogue", "--events", import_path])
    assert f"--events {import_path} {reason}" in capsys.readouterr().err
