"""The source distribution has all files of the repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.patience import END_S

ROOT = Path(__file__).resolve().parents[2]


def test_the_source_distribution_has_every_file_of_the_repository(tmp_path: Path):
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no checkout, or there is no git: the files cannot be listed")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}
    tree, out = tmp_path / "tree", tmp_path / "out"
    for name in files:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    out.mkdir()

    build = "import sys; from setuptools import build_meta as b; print(b.build_sdist(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(out)],
        cwd=tree, capture_output=True, text=True, check=True, timeout=END_S,
    )  # fmt: skip

    with tarfile.open(out / done.stdout.split()[-1]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert files - held == set()
