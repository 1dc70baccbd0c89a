"""A release: its archives are reproducible, and its signature can be verified."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from release.dist import build, sign, write_sums
from tests.patience import END_S

ROOT = Path(__file__).resolve().parents[2]
AT_S = 1_700_000_000

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout")


@needs_git
@needs_openssl
def test_a_release_is_reproducible_and_its_signature_is_verified(tmp_path: Path):
    """With a throw-away key, and the commands of docs/releasing.md."""
    first, second = tmp_path / "first", tmp_path / "second"
    files = build(first, at_s=AT_S)
    again = build(second, at_s=AT_S)
    assert [file.suffix for file in files] == [".whl", ".gz"]
    assert [file.read_bytes() for file in files] == [file.read_bytes() for file in again]
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


def manual() -> str:
    return (ROOT / "docs" / "releasing.md").read_text()


def verify(commands: str, folder: Path) -> bool:
    done = subprocess.run(
        ["bash", "-ec", commands], cwd=folder, capture_output=True, check=False, timeout=END_S
    )
    return done.returncode == 0


def openssl(*words: str, cwd: Path) -> None:
    subprocess.run(["openssl", *words], cwd=cwd, check=True, capture_output=True, timeout=END_S)
