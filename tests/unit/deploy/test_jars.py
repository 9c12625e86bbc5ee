"""The lock of the Java archives, the store, and the requests to Maven and Ivy."""

import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from towpath.sinks.errors import JarsError, PrerequisiteError
from towpath.sinks.jars import __main__ as command
from towpath.sinks.jars import fetch, store
from towpath.sinks.jars.store import Jar


def _jar(content: bytes, coordinate: str = "org.a:b:1", use: str = "kafka") -> Jar:
    group, artifact, version, *rest = coordinate.split(":")
    del group
    kind = rest[0] if rest else "jar"
    classifier = f"-{rest[1]}" if len(rest) > 1 else ""
    return Jar(
        use=use,
        coordinate=coordinate,
        file=f"{artifact}-{version}{classifier}.{kind}",
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
    )


def _packed() -> bytes:
    """Return a small tar.gz with one file."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        info = tarfile.TarInfo("lib/a b.txt")
        info.size = 5
        archive.addfile(info, io.BytesIO(b"hello"))
    return buffer.getvalue()


def test_every_entry_of_the_lock_is_complete() -> None:
    """
    Each archive has a known use, a sha256, a size and its own file name.
    """
    odd = [
        jar.coordinate
        for jar in store.read_lock()
        if jar.use not in {"kafka", "opensearch", "registry", "spark"}
        or len(jar.sha256) != 64
        or jar.size_bytes <= 0
        or jar.repository_path.name != jar.file
    ]

    assert odd == []


def test_the_store_is_below_the_clone_or_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    An installed wheel has no clone, so its archives are in the user's cache.
    """
    digest = store.lock_digest()
    assert store.CLONE / ".towpath/jars" / digest == store.folder({})

    monkeypatch.setattr(store, "CLONE", tmp_path / "no-clone")

    cache = tmp_path / "cache"
    found = store.folder({"XDG_CACHE_HOME": str(cache)})
    assert cache / "towpath/jars" / digest == found
    assert Path.home() / ".cache/towpath/jars" / digest == store.folder({})


def test_a_user_without_a_home_must_name_the_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    A service may run as a user without a home.
    """

    def home() -> Path:
        message = "Could not determine home directory."
        raise RuntimeError(message)

    monkeypatch.setattr(store, "CLONE", tmp_path / "no-clone")
    monkeypatch.setattr(store.Path, "home", home)
    for name in ("XDG_CACHE_HOME", "TOWPATH_JARS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.argv", ["jars"])

    assert JarsError.exit_code == command.main()
    assert "this user has no home: name a folder" in capsys.readouterr().err


def test_no_use_has_two_versions_of_one_archive() -> None:
    """
    Within one use, a file name occurs once, because all its files share one folder.
    """
    names = [(jar.use, jar.file) for jar in store.read_lock()]

    assert len(set(names)) == len(names)


def test_a_coordinate_determines_its_path_in_a_repository() -> None:
    """
    Type and classifier are part of the file's name.
    """
    jar = _jar(b"x", "io.apicurio:app:3.3.3:tar.gz:all")

    expected = Path("io/apicurio/app/3.3.3/app-3.3.3-all.tar.gz")

    assert expected == jar.repository_path


def test_a_truncated_file_is_not_complete(tmp_path: Path) -> None:
    """
    A stored archive that has lost its last byte counts as missing.
    """
    jar = _jar(b"content")
    source = tmp_path / "source.jar"
    source.write_bytes(b"content")
    store.put(jar, source, tmp_path / "store")
    assert store.is_complete(jar, tmp_path / "store")

    # Replace the file instead of truncating it: the store may share bytes with the
    # source.
    (tmp_path / "store" / "kafka" / jar.file).unlink()
    (tmp_path / "store" / "kafka" / jar.file).write_bytes(b"conten")

    assert [jar] == store.missing([jar], tmp_path / "store")


def test_a_file_of_the_right_size_with_wrong_bytes_is_refused(tmp_path: Path) -> None:
    """
    A fetched file counts only if its sha256 matches the one in the lock.
    """
    jar = _jar(b"content")
    (tmp_path / "file").write_bytes(b"c0ntent")

    assert not store.check(jar, tmp_path / "file")


def test_a_truncated_unpacked_file_is_detected(tmp_path: Path) -> None:
    """
    An unpacked archive counts as missing as soon as one of its files is truncated.
    """
    content = _packed()
    jar = _jar(content, "io.apicurio:app:3:tar.gz:all", "registry")
    (tmp_path / "packed").write_bytes(content)
    store.put(jar, tmp_path / "packed", tmp_path / "store")
    assert store.is_complete(jar, tmp_path / "store")

    os.truncate(tmp_path / "store" / "registry" / "lib" / "a b.txt", 4)

    assert not store.is_complete(jar, tmp_path / "store")


def test_an_interrupted_unpacking_is_not_complete(tmp_path: Path) -> None:
    """
    Files do not count without the list that is written near the end.
    """
    jar = _jar(_packed(), "io.apicurio:app:3:tar.gz:all", "registry")
    (tmp_path / "registry" / "lib").mkdir(parents=True)

    assert not store.is_complete(jar, tmp_path)


def test_fetched_wrong_bytes_give_an_error_that_names_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    If a fetched file has a wrong sha256, nothing is stored and the file is deleted.
    """
    jar = _jar(b"content")
    fetched = fetch.repository(tmp_path / "x.fetch") / jar.repository_path

    def fetch_wrong_bytes(*_: object) -> str:
        fetched.parent.mkdir(parents=True)
        fetched.write_bytes(b"c0ntent")
        return ""

    monkeypatch.setattr(fetch, "_by_ivy", fetch_wrong_bytes)

    with pytest.raises(JarsError, match=r"org\.a:b:1"):
        fetch.ensure(print, {"TOWPATH_JARS": str(tmp_path / "x"), "PATH": ""}, [jar])

    assert not fetched.exists()


def test_a_store_that_cannot_be_written_gives_one_error(tmp_path: Path) -> None:
    """
    The user chooses the folder, and its disk may be full.
    """
    (tmp_path / "file").touch()
    environ = {"TOWPATH_JARS": str(tmp_path / "file" / "x"), "PATH": ""}

    with pytest.raises(JarsError, match=r"cannot be fetched into .*file/x"):
        fetch.ensure(print, environ, [_jar(b"")])


def test_files_fetched_before_an_interruption_are_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Complete files in the work folder are reused; only the rest is requested.
    """
    here, there = _jar(b"one", "org.a:b:1"), _jar(b"two", "org.a:c:1")
    repository = fetch.repository(tmp_path / "x.fetch")
    (repository / here.repository_path).parent.mkdir(parents=True)
    (repository / here.repository_path).write_bytes(b"one")
    requested = []

    def fetch_by_ivy(jars: list[Jar], *_: object) -> str:
        requested.extend(jars)
        for jar in jars:
            (repository / jar.repository_path).parent.mkdir(parents=True)
            (repository / jar.repository_path).write_bytes(b"two")
        return ""

    monkeypatch.setattr(fetch, "_by_ivy", fetch_by_ivy)
    environ = {"TOWPATH_JARS": str(tmp_path / "x"), "PATH": ""}

    count = fetch.ensure(lambda _: None, environ, [here, there])

    assert requested == [there]
    assert count == 2
    assert store.missing([here, there], tmp_path / "x") == []


def test_archives_of_one_folder_are_fetched_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A missing archive's folder is deleted, so all archives of the folder are fetched.
    """
    plain, native = _jar(b"one"), _jar(b"two", "org.a:b:1:jar:linux")
    repository = fetch.repository(tmp_path / "x.fetch")
    (repository / plain.repository_path).parent.mkdir(parents=True)
    (repository / plain.repository_path).write_bytes(b"one")

    def fetch_by_ivy(jars: list[Jar], *_: object) -> str:
        for jar in jars:
            path = repository / jar.repository_path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"one" if jar == plain else b"two")
        return ""

    monkeypatch.setattr(fetch, "_by_ivy", fetch_by_ivy)
    environ = {"TOWPATH_JARS": str(tmp_path / "x"), "PATH": ""}

    assert fetch.ensure(lambda _: None, environ, [plain, native]) == 2
    assert store.missing([plain, native], tmp_path / "x") == []


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "cannot be read: No such file"), ("-----BEGIN", "has no certificate")],
)
def test_unusable_certificates_are_reported(
    tmp_path: Path, content: str | None, why: str
) -> None:
    """
    The variable is named, because it is the cause.
    """
    certificates = tmp_path / "ca.pem"
    if content is not None:
        certificates.write_text(content)

    with pytest.raises(JarsError, match=f"SSL_CERT_FILE: .*ca.pem {why}"):
        fetch.trust_store_flags(certificates, tmp_path / "trust.p12")


def test_a_fetch_without_java_ends_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """
    Neither Maven nor Ivy runs without Java.
    """

    def fail(*_: object) -> int:
        message = "no Java 21"
        raise PrerequisiteError(message)

    monkeypatch.setenv("TOWPATH_JARS", str(tmp_path))
    monkeypatch.setattr(fetch, "ensure", fail)
    monkeypatch.setattr("sys.argv", ["jars"])
    code = command.main()

    assert (2, f"error: no Java 21\nremedy: {PrerequisiteError.remedy}\n") == (
        code,
        capsys.readouterr().err,
    )


@pytest.mark.parametrize("name", ["s4", "s3/s3"])
def test_the_error_for_an_unknown_lock_lists_the_known_locks(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A mistyped name is a mistake on the command line.
    """
    monkeypatch.setattr("sys.argv", ["jars", name])
    with pytest.raises(SystemExit, match="2"):
        command.main()

    assert f"there is no lock {name} (locks: " in capsys.readouterr().err


def test_the_error_for_an_unknown_use_lists_the_known_uses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Otherwise the command would succeed without fetching anything.
    """
    monkeypatch.setattr("sys.argv", ["jars", "--only", "spork"])
    with pytest.raises(SystemExit, match="2"):
        command.main()

    assert "unknown use spork (uses: kafka, " in capsys.readouterr().err


def test_maven_gets_every_archive_by_name(tmp_path: Path) -> None:
    """
    Each use has a module that names its archives and excludes their dependencies.
    """
    jars = [_jar(b"1", "org.a:b:1"), _jar(b"2", "org.a:b:2", "spark")]

    fetch.maven_command("mvn", jars, tmp_path)

    text = (tmp_path / "project" / "spark" / "pom.xml").read_text(encoding="utf-8")
    assert "<version>2</version>" in text
    assert "<groupId>*</groupId>" in text

    assert (tmp_path / "project" / "kafka" / "pom.xml").exists()


def test_ivy_processes_share_the_archives_by_size(tmp_path: Path) -> None:
    """
    The largest archive has an Ivy process to itself; smaller ones share the others.
    """
    big = _jar(b"x" * 1000, "org.a:big:1")
    small = [
        _jar(b"x" * 10, f"org.a:small{n}:1") for n in range(fetch.IVY_PROCESSES * 2)
    ]

    commands = fetch.ivy_commands(Path("java"), [], [*small, big], tmp_path)

    modules = [path.read_text("utf-8") for path in tmp_path.glob("ivy-*/ivy.xml")]
    alone = [m for m in modules if 'name="big"' in m and "small" not in m]
    assert len(commands) == fetch.IVY_PROCESSES

    assert len(alone) == 1


def test_no_archive_host_is_written(tmp_path: Path) -> None:
    """
    Maven's and Ivy's own settings name the archive hosts, so no address is written.
    """
    jars = [_jar(b"1", "org.a:b:1")]
    fetch.maven_command("mvn", jars, tmp_path)
    fetch.ivy_commands(Path("java"), [], jars, tmp_path)
    written = [path.read_text("utf-8") for path in tmp_path.rglob("*.xml")]
    text = "".join(written).replace("http://maven.apache.org/POM/4.0.0", "")

    assert 4 == len(written)
    assert "//" not in text.replace("http://ant.apache.org/ivy/maven", "")
