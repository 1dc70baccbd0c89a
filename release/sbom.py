"""The list of the parts of a release (SBOM) in the format CycloneDX, from the lock files.

    python -m release.sbom FILE --site FOLDER --at SECONDS

FOLDER is the library of an environment with the locked packages, from which licences and
dependencies are read.  Libraries that qmd needs have the scope `required`, those of extras
`optional`.  The file is validated against the schema before it is written; two runs give the same
bytes.  `make dist` runs this with `.venv/sbom`, whose packages are those of requirements-sbom.lock.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parents[1]
#: The lock files of a running qmd, and the scope of their packages.
LOCKS = {
    "requirements.lock": ComponentScope.REQUIRED,
    "requirements-services.lock": ComponentScope.OPTIONAL,
    "requirements-amqp.lock": ComponentScope.OPTIONAL,
}
_LOCKED = re.compile(r"^([\w.-]+)(?:\[\w+\])?==(\S+) \\$", re.MULTILINE)
_NAMES = uuid.UUID("1b0f4dbe-5a0c-4a52-9c53-2a0f1c6a8f11")


def make(site: Path, *, at_s: int) -> str:
    """Return the list as JSON.  Raises ValueError if it does not follow the schema."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = {_normalized(each.name): each for each in distributions(path=[str(site)])}
    bom = Bom(serial_number=uuid.uuid5(_NAMES, f"{project['version']} {at_s}"))
    bom.metadata.timestamp = datetime.fromtimestamp(at_s, UTC)
    root = _component(project["name"], project["version"], ComponentType.APPLICATION)
    root.licenses.add(LicenseFactory().make_from_string(project["license"]))
    bom.metadata.component = root
    found = {}
    for name, version, scope in locked():
        part = found.setdefault(name, _component(name, version, ComponentType.LIBRARY, scope))
        if name in installed and installed[name].version == version:
            _add_licence(part, installed[name])
    for part in found.values():
        bom.components.add(part)
    bom.register_dependency(root, list(found.values()))
    for name, part in found.items():
        needs = _needs(installed[name]) if name in installed else set()
        bom.register_dependency(part, [found[each] for each in sorted(needs & found.keys())])
    text: str = JsonV1Dot6(bom).output_as_string(indent=1)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(f"the list does not follow the schema: {error}")
    return text + "\n"


def locked() -> Iterator[tuple[str, str, ComponentScope]]:
    """Return name, version and scope of the packages of a running qmd, required ones first."""
    seen = set()
    for lock, scope in LOCKS.items():
        for name, version in _LOCKED.findall((ROOT / lock).read_text()):
            if _normalized(name) not in seen:
                seen.add(_normalized(name))
                yield _normalized(name), version, scope


def _component(
    name: str, version: str, kind: ComponentType, scope: ComponentScope | None = None
) -> Component:
    url = PackageURL("pypi", None, name, version)
    return Component(name=name, version=version, type=kind, scope=scope, purl=url, bom_ref=str(url))


def _add_licence(part: Component, distribution: Distribution) -> None:
    """Add the licence that a package states: an expression of SPDX, or a name in one line."""
    metadata = distribution.metadata
    stated = metadata.get("License-Expression") or metadata.get("License") or ""
    if not stated or "\n" in stated:
        of_classifiers = [
            each.rpartition(" :: ")[2]
            for each in metadata.get_all("Classifier") or []
            if each.startswith("License :: ")
        ]
        stated = of_classifiers[0] if of_classifiers else ""
    if stated:
        part.licenses.add(LicenseFactory().make_from_string(stated))


def _needs(distribution: Distribution) -> set[str]:
    """Return the names of the packages that one requires, without those of its extras."""
    required = (each for each in distribution.requires or () if "extra ==" not in each)
    return {_normalized(re.split(r"[^\w.-]", each)[0]) for each in required}


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--site", type=Path, required=True)
    parser.add_argument("--at", type=int, required=True, help="seconds since 1970 UTC")
    arguments = parser.parse_args()
    try:
        arguments.file.write_text(make(arguments.site, at_s=arguments.at), encoding="utf-8")
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
