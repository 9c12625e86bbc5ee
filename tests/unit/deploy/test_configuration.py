"""The towpath.toml that ``up`` writes is complete, and keeps the user's changes."""

import dataclasses
import errno
from pathlib import Path

import pytest

from towpath.deploy.local.configuration import (
    check_files,
    update_ports,
    write_configuration,
)
from towpath.deploy.local.stack import Addresses
from towpath.schemas.failure import UsageError
from towpath.services.orders.events import shop_schemas
from towpath.settings import RouteKind, load
from towpath.sinks.targets.search.schema import document_fields

_BEFORE = Addresses(
    postgres_port=20_001,
    kafka_port=20_002,
    registry_port=20_003,
    opensearch_port=9_201,
    redis_port=20_004,
)


def test_a_new_file_loads_and_names_the_shop(tmp_path: Path) -> None:
    """
    The written file is a valid configuration with the three sinks and their routes.
    """
    path = tmp_path / "towpath.toml"

    write_configuration(_BEFORE, path)

    settings = load(path, {})
    routes = {
        sink.name: [(route.topic, route.name) for route in sink.route]
        for sink in settings.sink
    }
    assert settings.state_folder == tmp_path
    assert settings.sink[2].folder == tmp_path / "warehouse"
    assert settings.sink[2].route[6].kind is RouteKind.EVENT_LOG
    assert settings.sink[1].route[4].kind is RouteKind.AGGREGATE
    assert settings.relay.outbox.view[0].view == "shop.order_documents"
    tables = (
        *("shop.customers", "shop.orders", "shop.order_lines"),
        *("inventory.products", "payments.payments", "shipping.shipments"),
    )
    plain = [(f"towpath.{t}", t.partition(".")[2]) for t in tables]
    full = [(f"towpath.{t}", t) for t in tables]
    expected = {
        "cache": plain,
        "search": [plain[0], *plain[3:], ("outbox.event.order", "orders")],
        "warehouse": [*full, ("outbox.event.*", "shop.events")],
    }

    assert expected == routes


def test_moved_ports_are_replaced_and_the_rest_is_kept(tmp_path: Path) -> None:
    """
    Only the stack's addresses change; the user's own port and comments are kept.
    """
    path = tmp_path / "towpath.toml"
    write_configuration(_BEFORE, path)
    text = path.read_text(encoding="utf-8")
    own = (
        text.replace("20003/", "5555/")
        + "# mine: 127.0.0.1:200011 10.127.0.0.1:20001\n"
    )
    path.write_text(own, encoding="utf-8")
    # Postgres and Kafka swap their ports, and neither port may be replaced twice.
    after = dataclasses.replace(_BEFORE, postgres_port=20_002, kafka_port=20_001)

    write_configuration(after, path)

    changed = path.read_text(encoding="utf-8")
    settings = load(path, {})
    assert ":20002/shop" in settings.database.dsn
    assert settings.kafka.bootstrap_servers == "127.0.0.1:20001"
    assert ":5555/" in settings.registry.url

    assert "# mine: 127.0.0.1:200011 10.127.0.0.1:20001\n" in changed


def test_an_unchanged_stack_leaves_the_file_unchanged(tmp_path: Path) -> None:
    """
    If no port has moved, not one byte is written.
    """
    path = tmp_path / "towpath.toml"
    write_configuration(_BEFORE, path)
    before = path.stat().st_mtime_ns

    write_configuration(_BEFORE, path)

    assert before == path.stat().st_mtime_ns


def test_a_file_without_the_mark_is_never_touched(tmp_path: Path) -> None:
    """
    A file that somebody else wrote lacks our first line, and is left unchanged.
    """
    path = tmp_path / "towpath.toml"
    path.write_text('url = "127.0.0.1:20001"\n', encoding="utf-8")

    write_configuration(dataclasses.replace(_BEFORE, postgres_port=1), path)

    assert path.read_text(encoding="utf-8") == 'url = "127.0.0.1:20001"\n'


def test_an_unreadable_written_file_gives_one_clear_error(tmp_path: Path) -> None:
    """
    The user may have saved the written file in a different encoding.
    """
    path = tmp_path / "towpath.toml"
    path.write_bytes("# local stack: postgres=5432\n# geändert\n".encode("latin-1"))

    with pytest.raises(UsageError, match=r"towpath\.toml cannot be read: 'utf-8'"):
        write_configuration(_BEFORE, path)


def test_the_order_documents_have_fields_for_all_event_data(tmp_path: Path):
    """
    The route's own fields are part of the document, and every event has a schema.
    """
    path = tmp_path / "towpath.toml"
    write_configuration(_BEFORE, path)
    route = load(path, {}).sink[1].route[4]
    from_events = document_fields(
        route.model_copy(update={"fields": {}}), shop_schemas().newest
    )
    found = document_fields(route, shop_schemas().newest)
    lines = [fields["lines"]["properties"].keys() for fields in (from_events, found)]

    assert from_events.keys() == found.keys()
    assert lines[0] == lines[1]


def test_a_users_own_file_gets_the_ports(tmp_path: Path) -> None:
    """
    The two ports listed in the file's first line are replaced with the stack's.
    """
    path = tmp_path / "blog.env"
    lines = "A=127.0.0.1:5432/blog\nB=redis://127.0.0.1:6379/0\nC=127.0.0.1:80\n"
    path.write_text(f"# local stack: postgres=5432 redis=6379\n{lines}")

    check_files([path])
    update_ports(_BEFORE, path)

    assert path.read_text().splitlines()[1:] == [
        "A=127.0.0.1:20001/blog",
        "B=redis://127.0.0.1:20004/0",
        "C=127.0.0.1:80",
    ]


@pytest.mark.parametrize("text", [None, "A=127.0.0.1:5432\n"])
def test_a_file_without_ports_is_refused(tmp_path: Path, text: str | None) -> None:
    """
    The file is missing, or does not list the ports that it was written for.
    """
    path = tmp_path / "blog.env"
    if text is not None:
        path.write_text(text)

    with pytest.raises(UsageError, match=r"blog\.env"):
        check_files([path])


def test_a_linked_private_file_remains_private_and_linked(
    tmp_path: Path,
) -> None:
    """
    An environment file may contain passwords, and may be in a different folder.
    """
    path, link = tmp_path / "blog.env", tmp_path / "link.env"
    path.write_text("# local stack: postgres=5432\nA=127.0.0.1:5432/blog\n")
    path.chmod(0o600)
    link.symlink_to(path)

    update_ports(_BEFORE, link)

    assert (True, 0o600) == (link.is_symlink(), path.stat().st_mode & 0o777)
    assert "127.0.0.1:20001/blog" in path.read_text()


def test_a_file_that_cannot_be_replaced_gives_one_clear_error(
    tmp_path: Path, monkeypatch
):
    """
    Its folder may belong to another user.
    """
    path = tmp_path / "blog.env"
    path.write_text("# local stack: postgres=5432\n")

    def closed(_path, **_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "touch", closed)

    with pytest.raises(UsageError, match=r"blog\.env cannot be replaced: Permission"):
        update_ports(_BEFORE, path)
