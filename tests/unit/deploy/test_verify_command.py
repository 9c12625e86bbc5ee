"""The sinks that ``towpath verify`` compares, and its exit code."""

import pytest

from towpath.cli import app
from towpath.schemas.failure import TowpathError
from towpath.sinks.errors import SourceUnavailableError, UnreadableProgressError
from towpath.sinks.verify import __main__ as verifier

BLOCK = """
[[sink]]
name = "{name}"
kind = "{kind}"
url = "http://127.0.0.1:1"
{more}
[[sink.route]]
topic = "towpath.shop.orders"
name = "{name}"
"""
SIGNED = 'webhook = { secrets = ["whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"] }'
SILENT = SourceUnavailableError("it does not answer")
UNREADABLE = UnreadableProgressError("a driver of a different version runs it")
HEAD = """
version = 1
state_folder = "."
[[source]]
dsn = "postgresql://127.0.0.1:1/shop"
tables = ["shop.orders"]
[kafka]
bootstrap_servers = "127.0.0.1:1"
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Provide a function that runs the command on sinks with given codes or errors."""
    path = tmp_path / "towpath.toml"
    hook = BLOCK.format(name="hook", kind="webhook", more=SIGNED)
    sinks = [BLOCK.format(name=name, kind="search", more="") for name in "abc"]
    path.write_text(HEAD + "".join(sinks) + hook)
    verified = []

    def run(codes, *args):
        def verify(config, name, _options):
            assert config == path
            verified.append(name)
            if isinstance(codes[name], TowpathError):
                raise codes[name]
            return codes[name]

        verified.clear()
        monkeypatch.setattr(verifier, "verify", verify)
        return app.run(["verify", *args, "--config", str(path)]), "".join(verified)

    return run


@pytest.mark.parametrize(
    ("args", "codes", "code", "verified"),
    [
        ((), (0, 0, 0), 0, "abc"),
        ((), (0, 1, 3), 1, "abc"),
        ((), (3, 1, 0), 1, "abc"),
        ((), (0, 3, 0), 3, "abc"),
        ((), (SILENT, 0, 1), 1, "abc"),
        ((), (0, SILENT, 0), 3, "abc"),
        ((), (0, UNREADABLE, 1), 1, "abc"),
        (("c", "a"), (1, 1, 0), 1, "ca"),
        (("b",), (1, 0, 1), 0, "b"),
        (("b",), (0, SILENT, 0), 3, "b"),
    ],
    ids=str,
)
def test_the_worst_result_sets_the_exit_code(run, args, codes, code, verified):
    """
    A difference outweighs an error; an unavailable sink does not block the others.
    """
    assert (code, verified) == run(dict(zip("abc", codes, strict=True)), *args)


@pytest.mark.parametrize("option", [("--route", "a"), ("--continuous",)])
@pytest.mark.parametrize("names", [(), ("a", "b")], ids=["all", "two"])
def test_an_option_for_one_sink_needs_its_name(run, capsys, names, option):
    """
    Nothing is compared, and the message asks for the name.
    """
    assert (2, "") == run({}, *names, *option)
    assert "are for one sink: name it" in capsys.readouterr().err
