"""The archives of a release: reproducible and signed; the wheel in an empty environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

import qmd
from release.dist import build, sign, write_sums
from release.manual import files
from tests.packages.life import Installed, exchange_messages, open_doors
from tests.patience import END_S

ROOT = Path(__file__).resolve().parents[2]
AT_S = 1_700_000_000
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
PACKAGES = ("pipeline", "protocol", "qmd", "storage")

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout"),
]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the wheel and the source distribution."""
    return build(tmp_path_factory.mktemp("dist"), at_s=AT_S)


@pytest.fixture(scope="module")
def wheel(archives: list[Path]) -> Path:
    (wheel,) = (file for file in archives if file.suffix == ".whl")
    return wheel


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with the wheel; its dependencies are those of the tests' environment.

    `QMD_PACKAGES=1` installs them from the index, as users do.
    """
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    words = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    if os.environ.get("QMD_PACKAGES") == "1":
        subprocess.run([*words, f"{wheel}[console,http,metrics,directory,traces]"], check=True)
        return folder
    subprocess.run([*words, "--no-deps", "--no-index", str(wheel)], check=True, timeout=END_S)
    (library,) = folder.glob("lib/python*/site-packages")
    # A folder that a .pth file names is no place for .pth files: the checkout stays out of sight.
    (library / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


@pytest.mark.skipif(os.environ.get("QMD_PACKAGES") != "1", reason="make packages-test runs it")
def test_two_builds_of_one_commit_are_equal_whatever_is_around_them(
    archives: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Pacific/Apia")
    monkeypatch.setenv("LC_ALL", "C")
    before = os.umask(0o077)
    try:
        again = build(tmp_path / "again", at_s=AT_S)
    finally:
        os.umask(before)

    assert [file.suffix for file in archives] == [".whl", ".gz"]
    assert [file.read_bytes() for file in archives] == [file.read_bytes() for file in again]


@needs_openssl
def test_the_signature_of_a_release_is_verified(archives: list[Path], tmp_path: Path) -> None:
    """With a throw-away key, and the commands of docs/releasing.md."""
    first = tmp_path / "first"
    shutil.copytree(archives[0].parent, first)
    files = sorted(first.iterdir())
    key, public = tmp_path / "key.pem", first / "qmd-release.pub"
    openssl("genpkey", "-algorithm", "ed25519", "-out", str(key), cwd=first)
    openssl("pkey", "-in", str(key), "-pubout", "-out", str(public), cwd=first)
    sums = write_sums(first, files)
    sign(sums, key)

    commands = re.search(r"```\n(openssl pkeyutl -verify.*?)```", manual(), re.S)
    assert commands is not None
    assert verify(commands[1], first)
    damaged = bytearray(files[0].read_bytes())
    damaged[100] ^= 1
    files[0].write_bytes(damaged)
    assert not verify(commands[1], first)
    write_sums(first, files)  # sums of the changed file, which the key has not signed
    assert not verify(commands[1], first)


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())

    assert {name for name in listed if (ROOT / name).exists()} <= held
    assert "pyspark_qmd.py" in held


def test_the_wheel_has_pages_dashboards_rules_and_units(environment: Path) -> None:
    places = {str(place) for place in files.texts()}
    places |= {f"share/qmd/{name}" for name in (
        *("grafana/fleet.json", "prometheus/qmd-alerts.yml", "systemd/qmd.service"),
        *("systemd/qmd-ship.timer", "systemd/qmd.socket"),
    )}  # fmt: skip

    assert {place for place in places if not (environment / place).is_file()} == set()


def test_the_wheel_names_all_its_dependencies(wheel: Path) -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(archive.read(name).decode())

    needed = [text for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert sorted(_spelled(text) for text in needed) == sorted(
        map(_spelled, project["dependencies"])
    )
    assert set(metadata.get_all("Provides-Extra", [])) == project["optional-dependencies"].keys()


def _spelled(requirement: str) -> tuple[str, ...]:
    return tuple(sorted(requirement.replace("<", ",<").replace(">", ",>").split(",")))


def test_an_installed_wheel_exchanges_messages_and_opens_its_doors(
    environment: Path, tmp_path: Path
) -> None:
    installed = Installed([str(environment / "bin" / "qmd")], tmp_path / "qmd", tmp_path / "log")
    assert installed.run("--version") == f"qmd {qmd.__version__}\n"
    installed.init()
    with installed.serving():
        exchange_messages(installed)
        open_doors(installed)


@pytest.mark.skipif(os.environ.get("QMD_PACKAGES") != "1", reason="make packages-test runs it")
def test_pipx_installs_the_command_and_its_pages(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "tool", with_pip=True)
    pip = [str(tmp_path / "tool" / "bin" / "python"), "-m", "pip", "install", "--quiet", "pipx"]
    subprocess.run(pip, check=True)
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "PIPX_HOME": str(tmp_path / "home"),
        "PIPX_BIN_DIR": str(tmp_path / "bin"),
        "PIPX_MAN_DIR": str(tmp_path / "man"),
    }

    subprocess.run(
        [str(tmp_path / "tool" / "bin" / "pipx"), "install", str(wheel)],
        env=environment, check=True,
    )  # fmt: skip

    installed = Installed([str(tmp_path / "bin" / "qmd")], tmp_path, tmp_path / "log")
    assert "QM-1619" in installed.run("explain", "QM-1619")
    assert (tmp_path / "man" / "man1" / "qmd-queue-create.1").exists()
    assert shutil.which("qmd", path=str(tmp_path / "bin"))


def manual() -> str:
    return (ROOT / "docs" / "releasing.md").read_text()


def verify(commands: str, folder: Path) -> bool:
    done = subprocess.run(
        ["bash", "-ec", commands], cwd=folder, capture_output=True, check=False, timeout=END_S
    )
    return done.returncode == 0


def openssl(*words: str, cwd: Path) -> None:
    subprocess.run(["openssl", *words], cwd=cwd, check=True, capture_output=True, timeout=END_S)
