"""The images of Towpath: linted, labeled, unprivileged, and built from the locks."""

import importlib.util
import json
import re
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from support import dockerfile
from towpath.sinks.jars import store

_PROGRAMS = Path(sys.executable).parent
_STAND_INS = store.CLONE / "tests" / "compose" / "stand_ins"
_REQUIREMENTS = store.CLONE / "requirements"
_SHIPPED = ("relay", "sinks", "services", "tools")
_STRICT = dockerfile.OURS.with_name(".hadolint.yaml")
_WHEEL = re.compile(r"dist\*/towpath_(\w+)-\*\.whl")
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)((?:.|\n)*?)(?=^\S|\Z)", re.MULTILINE)


@pytest.fixture(scope="module")
def stages() -> dict[str, dockerfile.Stage]:
    """Read the Dockerfile."""
    return dockerfile.ours()


@pytest.fixture(scope="module")
def locker() -> ModuleType:
    """Load the script that makes the locks, which does not belong to a package."""
    spec = importlib.util.spec_from_file_location("lock", _REQUIREMENTS / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _linted(configuration: Path, *files: Path) -> list[str]:
    """Return the codes of hadolint's findings."""
    done = subprocess.run(
        [
            *(_PROGRAMS / "hadolint", "--no-fail", "--format", "json"),
            *("--config", configuration, *files),
        ],
        capture_output=True,
        check=True,
    )
    return [found["code"] for found in json.loads(done.stdout)]


@pytest.mark.timeout(30)
def test_hadolint_finds_nothing_in_our_dockerfile() -> None:
    """
    Every rule of hadolint holds for the images that users run.
    """
    assert _linted(_STRICT, dockerfile.OURS) == []


@pytest.mark.timeout(30)
def test_hadolint_finds_nothing_in_the_stand_ins() -> None:
    """
    Every rule holds except those that their own configuration disables with a reason.
    """
    files = sorted(_STAND_INS.glob("*/Dockerfile"))

    assert len(files) > 5

    assert _linted(_STAND_INS / ".hadolint.yaml", *files) == []


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("planted", "code"),
    [
        ("FROM debian:latest", "DL3007"),
        ("FROM debian", "DL3006"),
        ("USER root", "DL3002"),
        ("RUN pip install --no-cache-dir requests", "DL3013"),
        ("RUN apt-get install -y --no-install-recommends curl", "DL3008"),
        ("RUN rm $HOME/*.txt", "SC2086"),
    ],
)
def test_hadolint_finds_a_planted_defect(
    tmp_path: Path, planted: str, code: str
) -> None:
    """
    It finds unpinned bases and packages, the root user, and a mistake in a script.
    """
    planted_file = tmp_path / "Dockerfile"
    text = dockerfile.OURS.read_text(encoding="utf-8")
    planted_file.write_text(f"{text}\n{planted}\n", encoding="utf-8")

    assert code in _linted(_STRICT, planted_file)


@pytest.mark.timeout(30)
def test_shellcheck_finds_nothing_in_the_scripts(tmp_path: Path) -> None:
    """
    The scripts of images and stand-ins pass, and a planted mistake does not.
    """
    planted = tmp_path / "script"
    planted.write_text('#!/bin/sh\nfor f in $(ls "$1"); do rm $f; done\n', "utf-8")
    shell = [dockerfile.OURS.with_name("install.sh"), *_STAND_INS.glob("*/entrypoint")]
    command = [_PROGRAMS / "shellcheck", "--norc"]

    ours = subprocess.run([*command, *shell], capture_output=True, check=False)
    wrong = subprocess.run([*command, planted], capture_output=True, check=False)

    assert len(shell) > 2
    assert ours.stdout == b""
    assert b"SC2045" in wrong.stdout
    assert b"SC2086" in wrong.stdout


def test_every_base_has_a_version(stages: dict[str, dockerfile.Stage]) -> None:
    """
    The one external image is named with its release, and no stage uses ``latest``.
    """
    (python,) = stages[""].of("ARG")
    bases = {stage.base for stage in stages.values()} - set(stages)

    assert bases == {"${PYTHON_IMAGE}"}
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.1[123]\.\d+-slim-\w+", python)
    assert "latest" not in dockerfile.OURS.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", _SHIPPED)
def test_a_shipped_stage_is_unprivileged_and_describes_itself(
    stages: dict[str, dockerfile.Stage], name: str
) -> None:
    """
    It has a numeric non-root user, a health check or ``NONE``, and the OCI labels.
    """
    users = [u for s in dockerfile.chain(stages, name) for u in s.of("USER")]
    found = dockerfile.labels(stages, name)
    version = (store.CLONE / "VERSION").read_text("utf-8").strip()
    (python,) = stages[""].of("ARG")

    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])
    assert len(stages[name].of("HEALTHCHECK")) == 1
    assert stages[name].of("ENTRYPOINT")
    assert found["org.opencontainers.image.title"] == f"towpath/{name}"
    assert found["org.opencontainers.image.description"]
    assert found["org.opencontainers.image.version"] == "${VERSION}"
    assert found["org.opencontainers.image.licenses"] == _project("deploy")["license"]
    assert f"VERSION={version}" in stages["base"].of("ARG")
    assert python.endswith("=" + found["org.opencontainers.image.base.name"])


@pytest.mark.parametrize("name", _SHIPPED)
def test_a_shipped_stage_copies_only_what_was_built(
    stages: dict[str, dockerfile.Stage], name: str
) -> None:
    """
    It installs nothing, and copies the environment and Java, but no sources.
    """
    copies = [words.split() for words in stages[name].of("COPY")]

    assert stages[name].of("RUN") == []
    assert {words[-2] for words in copies if words[0] == f"--from={name}-build"} <= {
        "/opt/towpath",
        "/opt/java",
    }
    assert {words[0] for words in copies if not words[0].startswith("--from=")} <= {
        "loadtests/locustfile.py"
    }


@pytest.mark.parametrize("name", _SHIPPED)
def test_an_image_installs_its_members_and_their_dependencies(
    stages: dict[str, dockerfile.Stage], locker: ModuleType, name: str
) -> None:
    """
    The members of an image are those of its lock and all members that they need.
    """
    build = stages[f"{name}-build"]
    copied = {word for words in build.of("COPY") for word in words.split()[:-1]}
    wheels = {_WHEEL.fullmatch(word)[1] for word in copied if word.endswith(".whl")}
    (installed,) = (
        re.findall(r"install\.sh members ([\w\s]+)", words)[0].split()
        for words in build.of("RUN")
        if "install.sh members" in words
    )

    assert set(installed) == wheels == _with_dependencies(locker.IMAGES[name])
    assert f"requirements/images/{name}.lock" in copied
    assert f"deploy/images/install.sh packages {name}" in build.of("RUN")


def test_no_source_of_a_member_is_in_the_build_context() -> None:
    """
    Images are built from wheels: the context lists every path that it contains.
    """
    lines = (store.CLONE / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if not line.startswith("#")]

    assert rules[0] == "*"
    assert {rule.removeprefix("!").split("/")[0] for rule in rules[1:]} == {
        *("VERSION", "deploy", "dist", "loadtests", "requirements"),
    }
    assert not [rule for rule in rules[1:] if "src" in rule or rule.endswith("**")]


def test_a_missing_wheel_is_reported_with_its_remedy(tmp_path: Path) -> None:
    """
    A build without wheels, or with those of an earlier version, ends with one sentence.
    """
    (tmp_path / "VERSION").write_text("0.2.0\n", encoding="utf-8")
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "towpath_schemas-0.1.0-py3-none-any.whl").touch()
    script = dockerfile.OURS.with_name("install.sh")
    command = ["sh", str(script), "members", "schemas"]

    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert done.stderr == (
        "error: there is no dist/towpath_schemas-0.2.0-py3-none-any.whl:"
        " run 'make wheels' in the clone first\n"
    )


@pytest.mark.parametrize("name", _SHIPPED)
def test_an_image_has_the_versions_of_the_local_stack(
    locker: ModuleType, name: str
) -> None:
    """
    Each image's lock has its members' dependencies as in run.lock; make lock writes it.
    """
    image = _pinned(_REQUIREMENTS / "images" / f"{name}.lock")
    run = _pinned(_REQUIREMENTS / "run.lock")
    left_out = locker.LEFT_OUT.get(name, ())
    needed = {
        re.split(r"[^\w.-]", text)[0].lower()
        for text in locker.dependencies_of(locker.IMAGES[name])
    }

    assert image.items() <= run.items()
    assert needed - set(left_out) <= set(image)
    assert not set(left_out) & set(image)


_WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
import towpath.services.storefront.__main__
from towpath.sinks.wait import Waiter
"""


@pytest.mark.timeout(30)
def test_the_services_need_no_package_that_their_image_leaves_out(
    locker: ModuleType,
) -> None:
    """
    The storefront starts without these packages, and fails without one that it needs.
    """
    left_out = locker.LEFT_OUT["services"]
    command = (sys.executable, "-c", _WITHOUT)
    codes = [
        subprocess.run([*command, *names], check=False, capture_output=True).returncode
        for names in (left_out, ["pyarrow"])
    ]

    assert len(left_out) > 2
    assert [0, 1] == codes


def test_an_image_lock_that_has_drifted_is_found(tmp_path: Path) -> None:
    """
    A version or a hash that differs from run.lock makes the comparison fail.
    """
    text = (_REQUIREMENTS / "run.lock").read_text(encoding="utf-8")
    run = _pinned(_REQUIREMENTS / "run.lock")
    drifted = tmp_path / "image.lock"
    for old, new in ((r"(confluent-kafka==)\S+", r"\g<1>0"), ("sha256:.", "sha256:x")):
        drifted.write_text(re.sub(old, new, text, count=1), encoding="utf-8")

        assert not _pinned(drifted).items() <= run.items()


def test_no_secret_is_in_an_image() -> None:
    """
    Neither a secret value of ``.env`` nor a variable for one is built in.
    """
    environ = store.CLONE / "deploy" / "compose" / ".env"
    lines = environ.read_text(encoding="utf-8").splitlines()
    values = [
        line.partition("=")[2]
        for line in lines
        if re.match(r"\w*(PASSWORD|SECRET|KEY)\w*=", line)
    ]
    text = "".join(
        path.read_text(encoding="utf-8")
        for path in (dockerfile.OURS, dockerfile.OURS.with_name("install.sh"))
    )

    assert len(values) > 2
    assert [value for value in values if value in text] == []
    assert re.findall(r"(?i)password|secret|token|access_key", text) == []


def _pinned(path: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Return the version and hashes of each locked package."""
    found = _PINNED.findall(path.read_text(encoding="utf-8"))
    return {
        name: (version, frozenset(re.findall(r"sha256:\w+", rest)))
        for name, version, rest in found
    }


def _project(member: str) -> dict[str, object]:
    path = store.CLONE / member / "pyproject.toml"
    project: dict[str, object] = tomllib.loads(path.read_text("utf-8"))["project"]
    return project


def _with_dependencies(members: list[str]) -> set[str]:
    """Return members together with those that they, or their extras, depend on."""
    names = {member.partition("[")[0] for member in members}
    for member in members:
        name, _, extra = member.rstrip("]").partition("[")
        project = _project(name)
        needed = project["dependencies"]
        assert isinstance(needed, list)
        if extra:
            extras = project["optional-dependencies"]
            assert isinstance(extras, dict)
            needed = [*needed, *extras[extra]]
        ours = [n.removeprefix("towpath-") for n in needed if n.startswith("towpath-")]
        names |= _with_dependencies(ours) if ours else set()
    return names


class _StatusHandler(BaseHTTPRequestHandler):
    """Responds with the status code that the path names."""

    def do_GET(self) -> None:
        self.send_response(int(self.path.removeprefix("/")))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_a_health_check_accepts_only_a_response_of_200() -> None:
    """
    A different code is unhealthy, and so is a port on which nothing listens.
    """
    script = dockerfile.OURS.with_name("healthy")

    def code_of(port: int, path: str) -> int:
        command = [str(script), str(port), path]
        return subprocess.run(command, check=False, capture_output=True).returncode

    with ThreadingHTTPServer(("127.0.0.1", 0), _StatusHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = server.server_port
        found = [code_of(port, path) for path in ("/200", "/503", "/404")]
        server.shutdown()
        thread.join()

    assert found == [0, 1, 1]
    assert code_of(port, "/200") == 1
