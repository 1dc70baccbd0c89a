"""The check of locked versions against known vulnerabilities."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path

import pytest

from release import advisories

ROOT = Path(__file__).resolve().parents[2]
COPY = json.loads(advisories.COPY.read_text())


def test_no_locked_version_has_a_known_vulnerability():
    assert advisories.findings(advisories.locked(), COPY) == []


def test_the_copy_of_advisories_is_for_all_locked_packages():
    missing = advisories.unknown(advisories.locked(), COPY)
    assert not missing, f"renew release/advisories.json as docs/releasing.md says: {missing}"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", COPY["date"])
    assert sum(map(len, COPY["advisories"].values())) > 100


@pytest.mark.parametrize(
    ("version", "is_affected"),
    [("3.0", False), ("3.1", True), ("41.0.5", True), ("41.0.6", False), ("50.0.2", False)],
)
def test_an_affected_version_is_found(version: str, is_affected: bool):
    """PYSEC-2023-254: from 3.1 on, fixed in 41.0.6."""
    found = advisories.findings({("cryptography", version)}, COPY)

    assert any("PYSEC-2023-254" in each for each in found) == is_affected


def test_an_old_copy_is_reported_and_no_release_is_made_with_it(monkeypatch, capsys):
    copy = {"date": "2024-10-10"}

    assert advisories.age_days(copy, datetime.date(2024, 11, 11)) == 32
    assert advisories.warning(advisories.RECENT_DAYS) == ""
    assert "32 days old" in advisories.warning(32)
    monkeypatch.setattr("sys.argv", ["advisories", "--days-max", "-1"])
    assert advisories.main() == 1
    assert "older than -1 days" in capsys.readouterr().out


def test_an_accepted_advisory_has_a_reason_and_exists():
    known = {each["id"] for entries in COPY["advisories"].values() for each in entries}

    assert advisories.ACCEPTED.keys() <= known
    assert all(advisories.ACCEPTED.values())


def test_the_checks_of_a_change_include_the_audit():
    assert re.search(r"^make audit &\nbeside\+=\(\$!\)$", (ROOT / ".ci" / "run").read_text(), re.M)
    makefile = (ROOT / "Makefile").read_text()
    audit = re.search(r"^audit:.*\n((?:\t.*\n)+)", makefile, re.M)
    assert audit is not None
    assert "bandit" in audit[1]
    assert "release.advisories" in audit[1]
