"""Check of the locked versions against a dated copy of known vulnerabilities.

    python -m release.advisories                     check; exit code 1: a version is affected
    python -m release.advisories --days-max 30       the same, and 1 if the copy is older: releases
    python -m release.advisories --renew REPOSITORY  take the copy again

REPOSITORY is a clone of https://github.com/pypa/advisory-database.  The copy has the advisories of
the locked packages only; it must be renewed when a package is added, and before each release.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess  # nosec B404: git only, without a shell
import sys
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
COPY = Path(__file__).with_name("advisories.json")
LOCKS = tuple(sorted(path.name for path in ROOT.glob("requirements*.lock")))
_LOCKED = re.compile(r"^([\w.-]+)(?:\[\w+\])?==(\S+) \\$", re.MULTILINE)

#: An older copy is reported in each output.
RECENT_DAYS = 30

#: Advisories that do not apply, each with the reason.
ACCEPTED: dict[str, str] = {}


def locked() -> set[tuple[str, str]]:
    """Return name and version of all locked packages."""
    return {
        (str(canonicalize_name(name)), version)
        for lock in LOCKS
        for name, version in _LOCKED.findall((ROOT / lock).read_text())
    }


def is_affected(version: str, advisory: dict[str, Any]) -> bool:
    """Return whether an advisory names a version, or has a range with it."""
    at = Version(version)
    return version in advisory["versions"] or any(
        Version(introduced) <= at
        and (fixed is None or at < Version(fixed))
        and (last is None or at <= Version(last))
        for introduced, fixed, last in advisory["ranges"]
    )


def findings(packages: set[tuple[str, str]], copy: dict[str, Any]) -> list[str]:
    """Return a sentence for each locked version with a known vulnerability."""
    return [
        f"{name} {version}: {advisory['id']} ({', '.join(advisory['aliases'])})"
        for name, version in sorted(packages)
        for advisory in copy["advisories"].get(name, [])
        if advisory["id"] not in ACCEPTED and is_affected(version, advisory)
    ]


def unknown(packages: set[tuple[str, str]], copy: dict[str, Any]) -> set[str]:
    """Return locked packages that the copy was not taken for."""
    return {name for name, _ in packages} - set(copy["packages"])


def renew(repository: Path) -> dict[str, Any]:
    """Read the advisories of the locked packages from a clone of the database."""
    import yaml  # type: ignore[import-untyped]

    def git(*words: str) -> str:
        done = subprocess.run(  # nosec B603, B607: a tool of the maintainers
            ["git", "-C", str(repository), *words], capture_output=True, text=True, check=True
        )
        return done.stdout

    names = sorted({name for name, _ in locked()})
    found: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        for file in git("ls-tree", "-r", "--name-only", "HEAD", f"vulns/{name}/").split():
            entry = yaml.safe_load(git("show", f"HEAD:{file}"))
            if "withdrawn" not in entry:
                found.setdefault(name, []).append(_shortened(name, entry))
    commit, date = git("log", "-1", "--format=%H %cs").split()
    return {
        "source": "https://github.com/pypa/advisory-database, licence CC-BY-4.0, shortened",
        "commit": commit,
        "date": date,
        "packages": names,
        "advisories": found,
    }


def _shortened(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    own = [each for each in entry["affected"] if canonicalize_name(each["package"]["name"]) == name]
    ranges: list[tuple[str, str | None, str | None]] = []
    for each in own:
        for part in each.get("ranges", []):
            if part["type"] == "ECOSYSTEM":
                ranges += _ranges(part["events"])
    # Versions are listed only where no range has them.
    versions = sorted({version for each in own for version in each.get("versions", [])})
    advisory = {"id": entry["id"], "aliases": entry.get("aliases", []), "ranges": ranges}
    rest = [each for each in versions if not is_affected(each, {**advisory, "versions": []})]
    return {**advisory, "versions": rest}


def _ranges(events: list[dict[str, str]]) -> list[tuple[str, str | None, str | None]]:
    """Return (introduced, fixed, last affected) of each range."""
    found: list[tuple[str, str | None, str | None]] = []
    for event in events:
        if "introduced" in event:
            found.append((event["introduced"], None, None))
        else:
            introduced = found[-1][0]
            found[-1] = introduced, event.get("fixed"), event.get("last_affected")
    return found


def age_days(copy: dict[str, Any], today: datetime.date) -> int:
    """Return the age of the copy."""
    return (today - datetime.date.fromisoformat(copy["date"])).days


def warning(days: int) -> str:
    """Return a sentence about a copy of that age, "" for a recent one."""
    if days <= RECENT_DAYS:
        return ""
    return (
        f"warning: the copy of the advisories is {days} days old, so that vulnerabilities published"
        " since then are not found: renew it, see docs/releasing.md"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--renew", type=Path, metavar="REPOSITORY")
    parser.add_argument("--days-max", type=int, help="fail if the copy is older")
    arguments = parser.parse_args()
    if arguments.renew:
        COPY.write_text(json.dumps(renew(arguments.renew), indent=1) + "\n")
    copy = json.loads(COPY.read_text())
    packages = locked()
    faults = findings(packages, copy)
    faults += [
        f"{name} is locked, and not in the copy: renew it" for name in unknown(packages, copy)
    ]
    count = sum(map(len, copy["advisories"].values()))
    days = age_days(copy, datetime.datetime.now(datetime.UTC).date())
    if arguments.days_max is not None and days > arguments.days_max:
        faults.append(f"the copy is older than {arguments.days_max} days")
    print(f"{len(packages)} locked packages, {count} advisories of {copy['date']}")
    if text := warning(days):
        print(text, file=sys.stderr)
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
