"""Reproducible archives of a release, and their signature.

    python -m release.dist OUT [--sbom PYTHON] [--key KEY]       `make dist KEY=...`

writes the source distribution, the wheel and SHA256SUMS into the folder OUT; with a Python that has
the packages of requirements-sbom.lock also the list of the parts (`release/sbom.py`); with the
Ed25519 key of the releaser (PEM) also SHA256SUMS.sig, by `openssl`.  Two builds of one commit are
equal, byte for byte: times are those of the commit, and entries are in order, without users and
groups.
docs/releasing.md describes the verification.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess  # nosec B404: git, openssl and this interpreter, without a shell
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUMS = "SHA256SUMS"
EARLIEST_S = 315_532_800  # zip files have no times before 1980
_BUILD = (
    "import sys; from setuptools import build_meta as b; out = sys.argv[1];"
    " b.build_sdist(out); b.build_wheel(out)"
)


def build(out: Path, *, at_s: int, source: Path = ROOT) -> list[Path]:
    """Build the source distribution and the wheel of the committed or listed files of `source`.

    `at_s` is the time of all entries, in seconds since 1970 UTC.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tree, made = Path(folder) / "tree", Path(folder) / "made"
        made.mkdir()
        copy_listed(source, tree)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(at_s), "PYTHONHASHSEED": "0"}
        _run([sys.executable, "-c", _BUILD, str(made)], cwd=tree, environment=environment)
        built = []
        for archive in sorted(made.iterdir()):
            target = out / archive.name
            if archive.name.endswith(".whl"):
                _pack_zip(archive, target, at_s)
            else:
                _pack_tar(archive, target, at_s)
            built.append(target)
    return built


def list_parts(out: Path, python: Path, *, at_s: int) -> Path:
    """Write the list of the parts of a release, from the environment of this interpreter."""
    import sysconfig
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    file = out.absolute() / f"{project['name'].replace('-', '_')}-{project['version']}.cdx.json"
    site = ("--site", sysconfig.get_path("purelib"), "--at", str(at_s))
    _run([str(python.absolute()), "-m", "release.sbom", str(file), *site], cwd=ROOT)
    return file


def write_sums(out: Path, files: list[Path]) -> Path:
    """Write SHA256SUMS in the format of `sha256sum`."""
    sums = out / SUMS
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    sums.write_text("".join(sorted(lines, key=lambda line: line.split()[1])))
    return sums


def sign(sums: Path, key: Path) -> Path:
    """Sign a file with an Ed25519 key.  Raises subprocess.CalledProcessError."""
    signature = sums.with_name(f"{sums.name}.sig")
    words = ("-sign", "-rawin", "-inkey", str(key), "-in", str(sums), "-out", str(signature))
    _run(["openssl", "pkeyutl", *words])
    return signature


def commit_time_s() -> int:
    """Return the time of the present commit; outside of a checkout SOURCE_DATE_EPOCH."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    return int(_run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]))


def copy_listed(source: Path, tree: Path) -> None:
    """Copy the files of the repository, and no others that happen to be there."""
    listed = _run(["git", "-C", str(source), "ls-files", "-z"])
    for name in filter(None, listed.split("\0")):
        if (source / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, tree / name)


def _pack_tar(archive: Path, target: Path, at_s: int) -> None:
    packed = io.BytesIO()
    with tarfile.open(archive) as old, tarfile.open(fileobj=packed, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = at_s, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with target.open("wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=at_s) as file:
        file.write(packed.getvalue())


def _pack_zip(archive: Path, target: Path, at_s: int) -> None:
    import time

    when = time.gmtime(max(at_s, EARLIEST_S))[:6]
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(target, "w") as new:
        for name in sorted(old.namelist()):
            entry = zipfile.ZipInfo(name, when)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            new.writestr(entry, old.read(name))


def _run(
    words: list[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    done = subprocess.run(  # nosec B603: the words are those above
        words, cwd=cwd, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sbom", type=Path, help="the Python that lists the parts")
    parser.add_argument("--key", type=Path, help="the Ed25519 key of the releaser, PEM")
    arguments = parser.parse_args()
    files = build(arguments.out, at_s=commit_time_s())
    if arguments.sbom:
        files.append(list_parts(arguments.out, arguments.sbom, at_s=commit_time_s()))
    sums = write_sums(arguments.out, files)
    print(sums.read_text(), end="")
    if arguments.key:
        print(sign(sums, arguments.key))
    else:
        print("not signed: KEY=... names the key", file=sys.stderr)


if __name__ == "__main__":
    main()
