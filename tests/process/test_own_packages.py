"""Programs with files that have the names of packages of qmd."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import END_S
from tests.process.command_line import COMMAND, ROOT

WRONG = "raise SystemExit('the wrong one')\n"


def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("protocol", "storage", "pipeline"):
        (tmp_path / f"{name}.py").write_text(WRONG)
    return tmp_path


def test_a_client_uses_the_packages_of_qmd_and_reports_ignored_files(folder: Path) -> None:
    (folder / "app.py").write_text(
        "from qmd.client import connect\nimport protocol\nprint(protocol.__file__)\n"
    )

    done = run(folder, sys.executable, "app.py")

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(ROOT / "protocol" / "__init__.py")
    assert f"{folder}/protocol.py has the name of a package of qmd, and is ignored" in (done.stderr)


def test_a_file_that_was_imported_before_is_named(folder: Path) -> None:
    (folder / "protocol.py").write_text("")
    (folder / "app.py").write_text("import protocol\nimport qmd.client\n")

    done = run(folder, sys.executable, "app.py")

    assert done.returncode == 1
    assert f"ImportError: {folder}/protocol.py has the name of a package of qmd" in done.stderr


def test_the_data_source_of_spark_is_found_beside_such_files(folder: Path) -> None:
    pytest.importorskip("pyspark")
    (folder / "app.py").write_text("import pyspark_qmd\nprint(pyspark_qmd.DefaultSource.name())\n")

    done = run(folder, sys.executable, "app.py")

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "qmd"


@pytest.mark.parametrize("path", [str(ROOT), f".:{ROOT}"])
def test_a_service_that_imports_such_a_file_is_refused_with_a_reason(
    folder: Path, path: str
) -> None:
    (folder / "orders.py").write_text("from protocol import Order\n")

    done = run(
        folder, *COMMAND, "service", "run", "orders:Orders", "--log-format", "json", PYTHONPATH=path
    )

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "gets the package of qmd with that name" in done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines() if line[:1] == "{"]
    passed_over = {line["file"] for line in lines if line["event"] == "file_passed_over"}
    assert passed_over == {
        str(folder / f"{name}.py") for name in ("protocol", "storage", "pipeline")
    }
    assert all(line["id"] == "QM-6009" and line["remedy"] for line in lines)
