"""The list of the parts of a release: complete, valid, and the same each time."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from release.dist import list_parts

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "sbom" / "bin" / "python"
AT_S = 1_700_000_000

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not PYTHON.exists(), reason="make .venv/sbom/ready installs the library"),
]


def test_the_list_names_every_locked_library_and_its_licence(tmp_path: Path) -> None:
    """`release/sbom.py` validates it against the schema before it writes it."""
    file = list_parts(tmp_path, PYTHON, at_s=AT_S)

    listed = json.loads(file.read_bytes())
    parts = {part["name"]: part for part in listed["components"]}
    for lock, scope in (
        ("requirements.lock", "required"),
        ("requirements-services.lock", "optional"),
    ):
        locked = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE)
        for name, version in locked:
            part = parts[re.sub(r"[-_.]+", "-", name).lower()]
            assert (part["version"], part["scope"]) == (version, scope)
            assert part["purl"] == f"pkg:pypi/{part['name']}@{version}"
            assert part["licenses"], name
    assert listed["metadata"]["component"]["name"] == "qmd-msmq"
    if os.environ.get("QMD_PACKAGES") == "1":
        first = file.read_bytes()
        assert list_parts(tmp_path, PYTHON, at_s=AT_S).read_bytes() == first
