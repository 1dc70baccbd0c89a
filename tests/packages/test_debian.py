"""The Debian packages: built, checked, and their whole life in a minimal Debian.

They take a minute of processor time, so `make packages-test` runs them (QMD_PACKAGES=1), and CI the
shorter form, without compression, optimization, lintian and the second build (QMD_PACKAGES=fast).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from release import deb
from tests.packages.chroot import Chroot, skip_without_tools
from tests.packages.life import Installed, exchange_messages, open_doors

FORM = os.environ.get("QMD_PACKAGES", "")
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
OLDER = "0.0.9"
NAMES = {"qmd", "qmd-amqp", "qmd-bridge", "qmd-console", "qmd-metrics", "qmd-traces"}

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(3600),  # the build installs a hundred packages, a slow disk removes them
    pytest.mark.skipif(FORM not in ("1", "fast"), reason="make packages-test runs it"),
    pytest.mark.skipif(bool(deb.missing()), reason=f"not installed: {deb.missing()}"),
]
only_at_length = pytest.mark.skipif(FORM != "1", reason="make packages-test runs it")


@pytest.fixture(scope="module")
def chroot(tmp_path_factory: pytest.TempPathFactory) -> Chroot:
    skip_without_tools()
    return Chroot(tmp_path_factory.mktemp("debian") / "root")


def older(package: Path, folder: Path) -> Path:
    """Return the same package with a lower version."""
    tree = folder / package.stem
    subprocess.run(["dpkg-deb", "-R", str(package), str(tree)], check=True)
    control = tree / "DEBIAN" / "control"
    text = control.read_text()
    version = re.search(r"^Version: (.*)$", text, re.MULTILINE)
    assert version is not None
    control.write_text(text.replace(version[1], OLDER))
    result = folder / f"{package.name.partition('_')[0]}_{OLDER}.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "-b", str(tree), str(result)],
        check=True, capture_output=True,
    )  # fmt: skip
    return result


def test_the_packages_live_in_a_minimal_debian(
    packages: list[Path], chroot: Chroot, tmp_path: Path
) -> None:
    assert {package.name.partition("_")[0] for package in packages} == NAMES
    command = chroot.enter(
        *("setpriv", "--reuid=qmd", "--regid=qmd", "--init-groups", "/usr/bin/qmd")
    )
    core = [package for package in packages if package.name.startswith("qmd_")]
    # The first version, as installed: its configuration, user and folders; in the short form
    # without the other parts, which the upgrade adds.
    first = packages if FORM == "1" else core
    chroot.install([older(package, tmp_path) for package in first])
    service = Installed(command, Path("/etc/qmd"), tmp_path / "log")
    with service.serving():
        service.run("queue", "create", "kept", "--transactional")
        service.run("send", "kept", "acknowledged")
    configuration = chroot.path("/etc/qmd/qmd.toml")
    configuration.write_text(configuration.read_text() + "# ours\n")

    # The upgrade keeps messages and the changed configuration; all parts work.
    chroot.install(packages)
    assert configuration.read_text().endswith("# ours\n")
    with service.serving():
        assert "acknowledged" in service.run("peek", "kept")
        exchange_messages(service)
        service.environment["QMD_CONSOLE_USERS"] = "/var/lib/qmd/console-users"
        open_doors(service)
        check_bridges(service, chroot)
    check_files(chroot)

    # Removal leaves the configuration and the messages, and a new installation goes on with them.
    # It needs only the package that has both.
    chroot.run("dpkg", "--remove", *sorted(NAMES))
    assert not chroot.path("/usr/lib/qmd").exists()
    assert configuration.exists()
    chroot.install(core)
    with service.serving():
        assert "acknowledged" in service.run("peek", "kept")

    # A purge removes the configuration; messages only with a yes.
    said = chroot.run("dpkg", "--purge", *sorted(NAMES))
    assert "The messages stay in /var/lib/qmd." in said
    assert not configuration.exists()
    assert chroot.path("/var/lib/qmd").is_dir()
    chroot.install(core)
    chroot.run("debconf-set-selections", input="qmd qmd/purge-data boolean true\n")
    chroot.run("dpkg", "--purge", "qmd")
    assert chroot.named("qmd") == set()


def check_files(chroot: Chroot) -> None:
    """Check the places, owners and modes of installed files."""
    data = chroot.path("/var/lib/qmd").stat()
    assert data.st_mode & 0o777 == 0o700
    assert chroot.run("stat", "-c", "%U:%G", "/var/lib/qmd", "/run/qmd").split() == ["qmd:qmd"] * 2
    for place in (
        *("/usr/share/man/man1/qmd-queue-create.1.gz", "/usr/share/man/man5/qmd.toml.5.gz"),
        "/usr/share/bash-completion/completions/qmd",
        "/usr/share/zsh/vendor-completions/_qmd",
        "/usr/share/fish/vendor_completions.d/qmd.fish",
        *("/usr/share/qmd/grafana/fleet.json", "/usr/share/qmd/prometheus/qmd-alerts.yml"),
    ):
        assert chroot.path(place).is_file(), place
    units = chroot.run("dpkg", "-L", *sorted(NAMES)).split()
    of_spark = ("qmd-audit", "qmd-ship", "qmd-watch")
    assert {Path(unit).name for unit in units if "/systemd/system/" in unit} == {
        unit.name
        for unit in (*DEPLOY.glob("*.service"), *DEPLOY.glob("*.socket"))
        if not unit.name.startswith(of_spark)
    }
    for unit in ("qmd.service", "qmd-console.service"):
        (place,) = (each for each in units if each.endswith(f"/{unit}"))
        assert "ExecStart=/usr/bin/qmd " in chroot.path(place).read_text()
    # Only the daemon, which accepts this host alone, starts at once.
    wanted = chroot.path("/etc/systemd/system/multi-user.target.wants")
    assert {each.name for each in wanted.glob("qmd*")} <= {"qmd.service"}
    # The modules of all packages are compiled: the daemon may write nothing there.
    for module in ("qmd/daemon", "jinja2/environment", "prometheus_client/core", "proton/_data"):
        folder, _, name = f"/usr/lib/qmd/{module}".rpartition("/")
        assert list(chroot.path(f"{folder}/__pycache__").glob(f"{name}.*.pyc")), module
    chroot.run("/usr/bin/python3", "-I", "-c", _PROTON)


def check_bridges(service: Installed, chroot: Chroot) -> None:
    """Check that the command finds the libraries of each kind: the other ends do not answer."""
    chroot.path("/etc/qmd/bridges.toml").write_text(_BRIDGES)
    said = service.run("bridge", "check", "--json", fails=True)
    rows = [json.loads(line) for line in said.splitlines()]
    assert [row["name"] for row in rows] == ["amqp", "kafka", "nats", "s3"]
    for row in rows:
        assert not row["ok"]
        assert "not installed" not in row["text"], row
    chroot.path("/etc/qmd/bridges.toml").unlink()


_BRIDGES = """
[bridge.amqp]
kind = "amqp"
direction = "out"
queue = "kept"
url = "amqp://127.0.0.1:9"
address = "x"

[bridge.kafka]
kind = "kafka"
direction = "out"
queue = "kept"
servers = "127.0.0.1:9"
topic = "x"

[bridge.nats]
kind = "nats"
direction = "out"
queue = "kept"
url = "nats://127.0.0.1:9"
stream = "x"
subject = "x"

[bridge.s3]
kind = "s3"
direction = "out"
queue = "kept"
endpoint = "http://127.0.0.1:9"
region = "x"
bucket = "x"
"""

_PROTON = "import sys; sys.path.insert(0, '/usr/lib/qmd'); import proton, opentelemetry.sdk.trace"


@only_at_length
@pytest.mark.skipif(shutil.which("lintian") is None, reason="lintian is not installed")
def test_lintian_finds_nothing(packages: list[Path]) -> None:
    done = subprocess.run(
        ["lintian", "--profile", "debian", "--fail-on", "error,warning", *map(str, packages)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout
    assert not [line for line in done.stdout.splitlines() if line.startswith(("E:", "W:"))]


@only_at_length
def test_two_builds_are_equal_whatever_is_around_them(
    packages: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both builds have folders of their own; this one another umask, time zone and time too."""
    monkeypatch.setenv("TZ", "Pacific/Apia")
    monkeypatch.setenv("LC_ALL", "C")
    before = os.umask(0o077)
    try:
        again = deb.build(tmp_path)
    finally:
        os.umask(before)

    for first, second in zip(packages, again, strict=True):
        assert first.name == second.name
        assert first.read_bytes() == second.read_bytes(), first.name
