"""``towpath config``: its output, the file that it writes, and its exit codes."""

import json
import resource
import tomllib
from pathlib import Path

import pytest

from towpath.cli import app as root
from towpath.settings import Route, load

DATA = Path(__file__).parents[2] / "data/debezium"
VALID = """
version = 1
[[source]]
dsn = "postgresql://u:hunter2@127.0.0.1/shop"
[kafka]
bootstrap_servers = "127.0.0.1:9092"
[kafka.client]
"security.protocol" = "SASL_SSL"
"sasl.mechanism" = "PLAIN"
"sasl.username" = "u"
"sasl.password" = "hunter2"
[registry]
url = "http://127.0.0.1:8081"
"""


def written(folder: Path, text: str) -> str:
    """Write a configuration, and return its name."""
    path = folder / "towpath.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_check_prints_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A file without mistakes is named, and nothing else is printed.
    """
    path = written(tmp_path, VALID)

    assert (0, f"{path}: no mistakes\n", "") == (
        root.run(["config", "check", "--config", path]),
        *capsys.readouterr(),
    )


def test_show_prints_the_effective_configuration_without_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The file, the environment and all defaults are shown as one file that can be loaded.
    """
    monkeypatch.setenv("TOWPATH_TOPICS__PARTITIONS", "12")

    code = root.run(["config", "show", "--config", written(tmp_path, VALID)])

    printed = capsys.readouterr()
    document = tomllib.loads(printed.out)
    assert code == 0
    assert "hunter2" not in printed.out
    assert document["topics"]["partitions"] == 12

    assert document["relay"]["rows"]["decimals"] == "string"


SINK = """
[[sink]]
name = "cache"
kind = "cache"
url = "redis://127.0.0.1:6379/0"
hash_salts = { people = "0123456789 hunter2" }
[[sink.route]]
topic = "towpath.shop.people"
name = "people"
transforms = [
    { hash = "email", salt = "people" },
    { constant = "", to = "note" },
    { drop_if = { state = ["test", "closed"], total = { below = 1.5 } } },
    { template = "{name}", to = "label" },
]
"""


def test_shown_transforms_can_be_loaded_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Defaults do not appear as options of other verbs, and secrets are not shown.
    """
    text = VALID.replace("[kafka]", 'tables = ["shop.people"]\n[kafka]') + SINK
    path = written(tmp_path, text)
    given = load(Path(path), {}).sink[0].route

    code = root.run(["config", "show", "--config", path])
    shown = capsys.readouterr().out
    routes = tomllib.loads(shown)["sink"][0]["route"]

    assert code == 0
    assert "hunter2" not in shown
    assert given == tuple(map(Route.model_validate, routes))


def test_shown_table_names_can_be_loaded_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A name with a space is quoted, both as a value and as a key.
    """
    path, shown = tmp_path / "towpath.toml", tmp_path / "shown.toml"
    path.write_text(
        """
version = 1
[[source]]
dsn = "postgresql://127.0.0.1:1/shop"
tables = ['"my s".t']
[kafka]
bootstrap_servers = "127.0.0.1:1"
[relay.outbox]
table = '"my outbox".t'
[relay.rows.key_columns]
'"my s".t' = ["a"]
""",
        encoding="utf-8",
    )

    assert 0 == root.run(["config", "show", "--config", str(path)])
    shown.write_text(capsys.readouterr().out, encoding="utf-8")

    assert load(path, {}) == load(shown, {})


def test_check_names_a_python_transform_that_is_not_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A sink with such a transform would not start.
    """
    text = VALID.replace("[kafka]", 'tables = ["shop.people"]\n[kafka]')
    sink = SINK.replace('{ constant = "", to = "note" }', '{ python = "never" }')
    path = written(tmp_path, text + sink)

    assert root.run(["config", "check", "--config", path]) == 2
    assert "no installed package provides 'never'" in capsys.readouterr().err


def test_check_reports_every_mistake_and_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Each mistake has one line, with the remedy below it.
    """
    text = (
        VALID + '[relay]\ndelivery = "transactionel"\n[relay.snapshot]\nchunk_row = 5\n'
    )

    code = root.run(["config", "check", "--config", written(tmp_path, text)])

    errors = capsys.readouterr().err
    assert code == 2
    assert "did you mean 'transactional'?" in errors

    assert "did you mean 'chunk_rows'?" in errors


def test_show_prints_json_for_scripts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The same configuration is printed as one JSON document.
    """
    path = written(tmp_path, VALID)

    assert root.run(["config", "show", "--json", "--config", path]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert shown["kafka"]["client"]["sasl.password"] == "********"

    assert shown["source"][0]["dsn"] == "postgresql://u:********@127.0.0.1/shop"


def test_a_connector_is_written_to_a_file_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    With --out, the report is on standard output, and the file loads.
    """
    out = tmp_path / "towpath.toml"
    args = ["config", "from-debezium", str(DATA / "inventory.json"), "--out", str(out)]

    assert root.run([*args, "--kafka", "k:9092"]) == 0

    printed = capsys.readouterr().out
    assert "slot.name: taken as source.slot = " in printed
    assert "dbz&secret" not in printed
    assert load(out, {}).kafka.bootstrap_servers == "k:9092"

    assert (root.run(args), "File exists" in capsys.readouterr().err) == (2, True)


def test_only_the_owner_may_read_a_file_with_passwords(tmp_path: Path) -> None:
    """
    A file without passwords has the mode of any new file.
    """
    args = ["config", "from-debezium", str(DATA / "inventory.json"), "--out"]
    private, other = tmp_path / "private.toml", tmp_path / "other.toml"
    any_file = tmp_path / "any"
    any_file.touch()

    assert 0 == root.run([*args, str(private), "--include-secrets"])
    assert 0 == root.run([*args, str(other)])

    assert "dbz%26secret" in private.read_text(encoding="utf-8")
    assert [0o600, any_file.stat().st_mode & 0o777] == [
        path.stat().st_mode & 0o777 for path in (private, other)
    ]


def test_a_full_disk_leaves_no_partial_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The next run can write the file; it would refuse to replace a partial one.
    """
    out = tmp_path / "towpath.toml"
    command = ["config", "from-debezium", str(DATA / "inventory.json"), "--out"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        code = root.run([*command, str(out)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert (2, f"error: {out}: File too large") == (
        code,
        capsys.readouterr().err.partition("\n")[0],
    )
    assert root.run([*command, str(out)]) == 0


def test_without_out_the_file_is_on_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    The output can be piped; the report goes to standard error.
    """
    assert root.run(["config", "from-debezium", str(DATA / "outbox.json")]) == 0

    printed = capsys.readouterr()
    assert tomllib.loads(printed.out)["relay"]["preset"] == "debezium"

    assert "tracing.span.context.field: not supported: " in printed.err


def test_a_conversion_is_one_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    """
    Scripts get the file, the properties and the remaining work in one document.
    """
    args = ["config", "from-debezium", str(DATA / "mixed.json"), "--json"]

    assert root.run(args) == 0

    report = json.loads(capsys.readouterr().out)
    verdicts = {each["property"]: each["verdict"] for each in report["properties"]}
    assert tomllib.loads(report["toml"])["source"][0]["prefix"] == "shop"

    assert verdicts["tombstone.on.delete"] == "unknown property"


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1}'])
def test_an_invalid_connector_exits_2_with_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """
    It is refused, and nothing is written.
    """
    path = tmp_path / "connector.json"
    path.write_text(text, encoding="utf-8")
    out = tmp_path / "towpath.toml"

    code = root.run(["config", "from-debezium", str(path), "--out", str(out)])

    lines = capsys.readouterr().err.splitlines()
    assert (code, len(lines), lines[0][:7]) == (2, 2, "error: ")

    assert not out.exists()


@pytest.mark.parametrize(
    ("dsn", "code", "reason"),
    [
        ("postgresql://u:s3cret@h/x y", 2, "--dsn is not postgresql://"),
        ("postgresql://u:s3cret@127.0.0.1:1/x", 3, "that --dsn names does not answer"),
    ],
)
def test_an_unusable_database_gives_one_error_about_its_option(
    dsn: str, code: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The remedy does not mention a configuration, because this command writes it.
    """
    given = str(DATA / "inventory.json")

    assert code == root.run(["config", "from-debezium", given, "--dsn", dsn])
    error = capsys.readouterr().err
    assert reason in error
    assert "towpath.toml" not in error
    assert "s3cret" not in error


def test_a_missing_connector_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The message names the missing file.
    """
    code = root.run(["config", "from-debezium", str(tmp_path / "absent.json")])

    assert (code, "absent.json: No such file" in capsys.readouterr().err) == (2, True)


def test_an_option_unknown_to_the_client_library_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The client library checks the section; no broker is contacted.
    """
    text = VALID.replace(
        '"sasl.password" = "hunter2"', '"socket.keepalive.enabel" = "true"'
    )

    assert root.run(["config", "check", "--config", written(tmp_path, text)]) == 2
    assert "socket.keepalive.enabel" in capsys.readouterr().err


def test_a_topic_that_only_a_regular_expression_matches_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The file cannot show whether it is mistyped; the message names a command that can.
    """
    text = (
        'version = 1\n[[source]]\ndsn = "postgresql:///x"\n'
        "tables = ['shop.customers', 'shop\\.o.*']\n"
        '[kafka]\nbootstrap_servers = "localhost:9092"\n'
        '[[sink]]\nname = "cache"\nkind = "cache"\nurl = "redis://x"\n'
        '[[sink.route]]\ntopic = "towpath.shop.customers"\nname = "customers"\n'
        '[[sink.route]]\ntopic = "towpath.shop.oders"\nname = "oders"\n'
    )
    path = written(tmp_path, text)

    assert root.run(["config", "check", "--config", path]) == 0
    assert capsys.readouterr().out == (
        f"{path}: no mistakes; towpath sink check reports whether "
        "towpath.shop.oders have tables\n"
    )
