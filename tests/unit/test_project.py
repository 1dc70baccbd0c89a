"""Project files: their contents are consistent, and they name no machine."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import qmd

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = [
    "requirements.lock",
    "requirements-build.lock",
    "requirements-dev.lock",
    "requirements-fuzz.lock",
    "requirements-bench.lock",
    "requirements-amqp.lock",
    "requirements-collector.lock",
    "requirements-kerberos.lock",
    "requirements-docs.lock",
    "requirements-sbom.lock",
    "requirements-services.lock",
]
DOCUMENTS = [
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md"),
    *(str(file.relative_to(ROOT)) for file in sorted((ROOT / "docs").glob("*.md"))),
]


def locked(lock):
    """Return name -> version of each package in a lock file."""
    return dict(
        re.findall(r"^([\w.-]+)(?:\[\w+\])?==(\S+) \\$", (ROOT / lock).read_text(), re.MULTILINE)
    )


def test_the_version_is_the_same_everywhere():
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert newest is not None
    packaged = re.match(r"qmd \((\S+)\)", (ROOT / "debian/changelog").read_text())
    assert packaged is not None
    assert qmd.__version__ == PROJECT["version"] == newest[1] == packaged[1]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_exact_versions_with_hashes_and_nothing_else(lock):
    text = (ROOT / lock).read_text()
    entry = r"[\w.-]+(\[\w+\])?==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n"

    assert re.fullmatch(rf"(({entry})|(\s*#.*\n)|\n)+", text)
    assert "://" not in text


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_is_complete_for_the_oldest_python(lock):
    """Some packages need others on 3.11.0 to 3.11.2, which Debian 12 has, and not on later ones."""
    oldest = {"python_version": "3.11", "python_full_version": "3.11.0", "extra": ""}
    together = {
        canonicalize_name(each) for name in ("requirements-dev.lock", lock) for each in locked(name)
    }
    missing = []
    for name in locked(lock):
        try:
            needs = [Requirement(each) for each in metadata.requires(name) or []]
        except metadata.PackageNotFoundError:
            continue  # not installed here
        missing += [
            f"{name}: {each}"
            for each in needs
            if (each.marker is None or each.marker.evaluate(oldest))
            and canonicalize_name(each.name) not in together
        ]
    assert not missing


def test_every_dependency_is_locked():
    names = {re.split(r"[^\w.-]", one)[0] for one in PROJECT["dependencies"]}
    tools = {re.split(r"[^\w.-]", one)[0] for one in PROJECT["optional-dependencies"]["dev"]}
    tools -= {PROJECT["name"]}  # extras of the project

    assert names <= locked("requirements.lock").keys()
    assert names | tools <= locked("requirements-dev.lock").keys()


def test_tests_run_with_the_locked_dependencies():
    assert locked("requirements.lock").items() <= locked("requirements-dev.lock").items()


def test_packages_have_the_libraries_of_services_as_they_are_tested():
    assert locked("requirements-services.lock").items() <= locked("requirements-dev.lock").items()
    for extra in ("console", "directory", "http", "metrics", "traces"):
        for one in PROJECT["optional-dependencies"][extra]:
            assert re.split(r"[^\w.-]", one)[0] in locked("requirements-services.lock"), extra


def test_compiled_dependencies_have_files_for_every_supported_python_and_platform():
    """There is one lock for all platforms: uvloop alone has dozens of files, one per platform."""
    text = (ROOT / "requirements.lock").read_text()

    for package in ("uvloop", "msgspec", "cryptography"):
        entry = re.search(rf"^{package}==.*?(?=^[\w.-]+==|\Z)", text, re.MULTILINE | re.DOTALL)
        assert entry is not None
        assert entry[0].count("sha256:") > 20


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_names_only_existing_commands(document):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = (ROOT / document).read_text()

    named = set(re.findall(r"(?:^    |`|sudo )make ([a-z-]+)", text, re.MULTILINE))

    assert named <= targets


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_names_only_existing_files(document):
    text = (ROOT / document).read_text()
    links = re.findall(r"\]\(([\w./-]+)\)", text)
    paths = re.findall(r"`((?:qmd|protocol|storage|tests|docs|deploy|benchmarks)/[\w./-]*)`", text)

    missing = [link for link in links if not ((ROOT / document).parent / link).exists()]
    missing += [path for path in paths if not (ROOT / path).exists()]

    assert not missing


@pytest.mark.parametrize("entrance", ["README.md", "docs/index.md"])
def test_each_manual_is_named_where_readers_enter(entrance):
    text = (ROOT / entrance).read_text()
    manuals = {file.stem for file in (ROOT / "docs").glob("*.md")} - {"index"}

    # SECURITY.md is the text of docs/security.md, and the README names that.
    missing = {name for name in manuals - {"security"} if not re.search(rf"\b{name}\b", text)}

    assert not missing
