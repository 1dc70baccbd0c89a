"""The container image: built without a registry, and run as its configuration says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from release import image
from release.dist import ROOT, copy_listed
from tests.packages.chroot import skip_without_tools
from tests.packages.life import Installed, exchange_messages
from tests.patience import END_S

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.environ.get("QMD_PACKAGES") != "1", reason="make packages-test runs it"),
    pytest.mark.skipif(bool(image.missing()), reason=f"not installed: {image.missing()}"),
]

#: As a container runs: process 1 of a namespace, as the user of the image, without privileges.
_AS_CONTAINER = (
    'mount -t proc proc "$0/proc" && exec chroot "$0" '
    'setpriv --reuid=1801 --regid=1801 --clear-groups --no-new-privs --bounding-set=-all "$@"'
)


def buildah(*words: str) -> str:
    done = subprocess.run(
        ["buildah", *words], capture_output=True, text=True, check=True, timeout=END_S
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the archive of a minimal Debian."""
    skip_without_tools()
    tar = tmp_path_factory.mktemp("image") / "base.tar"
    image.make_base(tar)
    return tar


@pytest.fixture(scope="module")
def name(packages: list[Path], base: Path) -> Iterator[str]:
    before = os.environ.get("STORAGE_DRIVER")
    os.environ["STORAGE_DRIVER"] = "vfs"  # needs nothing of the kernel
    name = f"localhost/qmd-test-{uuid.uuid4()}"
    try:
        image.build(name, base, packages)
        yield name
    finally:
        subprocess.run(["buildah", "rmi", name, f"{name}-base"], capture_output=True, check=False)
        if before is None:
            del os.environ["STORAGE_DRIVER"]


@pytest.fixture
def root(name: str) -> Iterator[Path]:
    """Return the root folder of a container of the image."""
    container = buildah("from", "--pull-never", name)
    try:
        yield Path(buildah("mount", container))
    finally:
        buildah("rm", container)


def test_the_image_names_user_volume_port_signal_and_health_check(name: str) -> None:
    inspected: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", name))
    config = inspected["Docker"]["config"]

    assert config["User"] == "1801:1801"
    assert config["Volumes"].keys() == {"/var/lib/qmd"}
    assert {"1801/tcp", "3527/udp"} == config["ExposedPorts"].keys()
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"] == ["CMD", "qmd", "status"]
    assert (config["Entrypoint"], config["Cmd"]) == (["/usr/bin/qmd"], ["serve"])


def test_a_container_exchanges_messages_and_its_process_1_ends_at_a_signal(
    root: Path, tmp_path: Path
) -> None:
    words = ["/bin/sh", "-c", _AS_CONTAINER, str(root), "/usr/bin/qmd"]
    command = ["/usr/bin/unshare", "--mount", *words]
    first = ["/usr/bin/unshare", "--mount", "--pid", "--fork", "--kill-child", *words]
    container = Installed(command, Path("/etc/qmd"), tmp_path / "log")
    environment = {
        name: value for name, value in container.environment.items() if "ROOT" not in name
    }
    container.environment = environment
    with (tmp_path / "log").open("ab") as log:
        process = subprocess.Popen(
            [*first, "serve"], cwd="/", env=environment, stdout=log, stderr=log
        )
        try:
            container.wait(process, ["status"])
            exchange_messages(container)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            (daemon,) = map(int, children)
            status = Path(f"/proc/{daemon}/status").read_text()
            assert "\nNSpid:\t" in status
            assert status.partition("\nNSpid:\t")[2].split("\n")[0].split()[-1] == "1"
            assert status.partition("\nUid:\t")[2].split()[0] == "1801"
            os.kill(daemon, 15)
            assert process.wait(END_S) == 0, (tmp_path / "log").read_text()[-3000:]
        finally:
            process.kill()
            process.wait()


class User:
    """A user that exists in a mount namespace only, with numbers for namespaces of its own."""

    NUMBER, NUMBERS = 23456, "builder:300000:65536"

    def __init__(self, place: Path) -> None:
        self._place = place
        line = f"builder:x:{self.NUMBER}:"
        files = {
            "passwd": f"{Path('/etc/passwd').read_text()}{line}{self.NUMBER}::{place}:/bin/sh\n",
            "group": f"{Path('/etc/group').read_text()}{line}\n",
            "subuid": f"{self.NUMBERS}\n",
            "subgid": f"{self.NUMBERS}\n",
        }
        for name, text in files.items():
            (place / name).write_text(text)
        mounts = "; ".join(f"mount --bind {place / name} /etc/{name}" for name in files)
        who = f"--reuid={self.NUMBER} --regid={self.NUMBER} --clear-groups"
        self._words = ["unshare", "--mount", "sh", "-c", f'{mounts}; exec setpriv {who} "$@"', "sh"]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self._place),
            "XDG_RUNTIME_DIR": str(self._place),
            "STORAGE_DRIVER": "vfs",
        }
        return subprocess.run(
            [*self._words, *words],
            cwd=self._place / "qmd", env=environment, capture_output=True, text=True, check=False,
            timeout=4 * END_S,  # a build writes half a gigabyte twice
        )  # fmt: skip


@pytest.fixture
def user() -> Iterator[User]:
    """Return a user with a home that has the source."""
    python = Path("/usr/bin/python3")
    if not python.exists():
        pytest.skip("the Python of the system, which every user may run, is not installed")
    place = Path(tempfile.mkdtemp())
    try:
        copy_listed(ROOT, place / "qmd")
        place.chmod(0o755)
        os.chown(place, User.NUMBER, User.NUMBER)
        user = User(place)
        allowed = user.run("unshare", "--user", "--map-root-user", "true")
        if allowed.returncode:
            pytest.skip(f"users may not have namespaces here: {allowed.stderr.strip()}")
        yield user
    finally:
        shutil.rmtree(place)


def test_a_user_without_privileges_builds_the_image(
    user: User, base: Path, packages: list[Path]
) -> None:
    given = Path(tempfile.mkdtemp())
    try:
        given.chmod(0o755)
        for file in (base, *packages):
            Path(shutil.copy(file, given)).chmod(0o644)
        chosen = ["--base", str(given / base.name), "--packages", str(given)]
        built = user.run("/usr/bin/python3", "-m", "release.image", "--name", "own", *chosen)
        assert built.returncode == 0, built.stderr[-3000:]
    finally:
        shutil.rmtree(given)
    container = user.run("buildah", "from", "--pull-never", "localhost/own").stdout.strip()
    ran = user.run(
        *("buildah", "run", "--isolation", "chroot", "--user", "1801:1801", container, "--"),
        *("/usr/bin/qmd", "--version"),
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("qmd")
