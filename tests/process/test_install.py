"""`make install` into an empty folder."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import END_S

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.process


def make(*words):
    """Run make with the interpreter of this test, as if its environment were complete."""
    command = ["make", "--old-file=.venv/ready", f"PY={sys.executable}", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """Return a prefix; all files are installed below it."""
    prefix = tmp_path_factory.mktemp("prefix")
    result = make("install", f"PREFIX={prefix}")
    assert result.returncode == 0, result.stderr
    return prefix


def files(folder):
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def qmd(prefix, *words):
    """Run the installed command as the service runs it, without the environment of this test."""
    command = [prefix / "bin/qmd", *words]
    return subprocess.run(
        command, cwd="/", env={}, capture_output=True, text=True, check=False, timeout=END_S
    )


def test_every_part_is_installed_in_its_place(prefix):
    installed = files(prefix)

    assert {
        "bin/qmd",
        "etc/qmd/qmd.toml",
        "lib/qmd/protocol/__init__.py",
        "lib/qmd/qmd/__init__.py",
        "lib/qmd/storage/schema.sql",
        "lib/systemd/system/qmd.service",
        "lib/systemd/system/qmd.socket",
        "lib/sysusers.d/qmd.conf",
        "lib/tmpfiles.d/qmd.conf",
        "share/doc/qmd/LICENSE",
        "share/doc/qmd/README.md",
        "share/doc/qmd/qmd.toml",
    } <= installed
    assert {file.partition("/")[0] for file in installed} == {"bin", "etc", "lib", "share"}


def test_the_unit_names_what_was_installed(prefix):
    unit = (prefix / "lib/systemd/system/qmd.service").read_text()

    assert f"ExecStart={prefix}/bin/qmd --config {prefix}/etc/qmd/qmd.toml serve" in unit
    assert "/usr/local" not in unit


def test_installed_files_are_readable_and_not_writable_for_all_users(prefix):
    modes = {file.stat().st_mode & 0o777 for file in prefix.rglob("*") if file.is_file()}

    assert modes <= {0o644, 0o755}
    assert os.access(prefix / "bin/qmd", os.X_OK)


def test_the_installed_application_needs_nothing_of_the_source_tree(prefix):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "import aiosqlite, click, construct, msgspec, structlog, uvloop, protocol, storage, qmd;"
        "print(protocol.__file__)"
    )
    command = [sys.executable, "-I", "-S", "-c", code, prefix / "lib/qmd"]

    result = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(str(prefix))


def test_the_installed_command_prints_its_version(prefix):
    helped = qmd(prefix, "--help")
    version = qmd(prefix, "--version")

    assert helped.returncode == 0, helped.stderr
    assert "serve" in helped.stdout
    assert version.returncode == 0, version.stderr
    assert re.search(r"\b0\.1\.0\b", version.stdout)


def test_a_packager_stages_files_that_do_not_know_the_staging_folder(tmp_path):
    result = make("install", "PREFIX=/usr", f"DESTDIR={tmp_path}")

    assert result.returncode == 0, result.stderr
    assert {"usr/bin/qmd", "usr/lib/systemd/system/qmd.service", "etc/qmd/qmd.toml"} <= files(
        tmp_path
    )
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or str(tmp_path).encode() not in file.read_bytes(), file
    unit = (tmp_path / "usr/lib/systemd/system/qmd.service").read_text()
    assert "ExecStart=/usr/bin/qmd --config /etc/qmd/qmd.toml serve" in unit


def test_without_an_environment_nothing_is_installed_and_nothing_downloaded(tmp_path):
    """The installing user is often root, and must not run pip (docs/decisions/0002)."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    for name in ("Makefile", "requirements.lock", "requirements-build.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "deploy", source / "deploy")

    result = subprocess.run(
        ["make", "install", f"DESTDIR={target}", f"PYTHON={sys.executable}"],
        cwd=source, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert result.returncode != 0
    assert "make setup" in result.stderr
    assert not (source / ".venv").exists()
    assert not target.exists()


def test_an_environment_of_an_older_state_installs_nothing_either(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    (source / ".venv").mkdir(parents=True)
    for name in ("Makefile", "requirements.lock", "requirements-build.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, source)
    (source / ".venv/ready").touch()
    os.utime(source / ".venv/ready", (1, 1))

    result = subprocess.run(
        ["make", "install", f"DESTDIR={target}", f"PYTHON={sys.executable}"],
        cwd=source, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert result.returncode != 0
    assert "make setup" in result.stderr
    assert not target.exists()


def test_an_upgrade_keeps_the_configuration_and_drops_old_modules(tmp_path):
    make("install", f"PREFIX={tmp_path}")
    configuration = tmp_path / "etc/qmd/qmd.toml"
    configuration.write_text("# mine\n")
    left_over = tmp_path / "lib/qmd/qmd/of_an_older_version.py"
    left_over.touch()

    result = make("install", f"PREFIX={tmp_path}")

    assert result.returncode == 0, result.stderr
    assert configuration.read_text() == "# mine\n"
    assert not left_over.exists()


def test_uninstall_leaves_only_the_configuration(tmp_path):
    make("install", f"PREFIX={tmp_path}")

    result = make("uninstall", f"PREFIX={tmp_path}", f"PYTHON={sys.executable}")

    assert result.returncode == 0, result.stderr
    assert files(tmp_path) == {"etc/qmd/qmd.toml"}


@pytest.mark.parametrize("words", [["PREFIX=relative"], ["PREFIX="]])
def test_a_prefix_that_is_not_absolute_is_refused(words):
    result = make("install", *words)

    assert result.returncode != 0
    assert "absolute" in result.stderr
