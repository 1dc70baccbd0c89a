"""Debian packages, built by dpkg-buildpackage from the committed or listed files.

    python -m release.deb OUT [--version VERSION]       `make deb`

writes the packages into the folder OUT.  Two builds of one commit are equal, byte for byte: see
`debian/rules`.  `--version` builds the same files under another version: tests upgrade from it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess  # nosec B404: the tools of Debian, without a shell
import sys
import tempfile
from pathlib import Path

from release.dist import ROOT, copy_listed

#: Programs that a build needs, and the Debian packages that have them.
TOOLS = {"dpkg-buildpackage": "dpkg-dev", "dh": "debhelper", "po2debconf": "po-debconf"}


def missing() -> list[str]:
    """Return the Debian packages that a build needs and this computer lacks."""
    return [package for tool, package in TOOLS.items() if shutil.which(tool) is None]


def build(
    out: Path,
    *,
    version: str | None = None,
    compression: str = "",
    options: str = "",
    source: Path = ROOT,
) -> list[Path]:
    """Build all packages into `out`; return the `.deb` files.

    `compression` is one of dpkg-deb; by default its own default.  `options` are DEB_BUILD_OPTIONS.
    Raises subprocess.CalledProcessError, with the end of the output of the build.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place) / "qmd"
        copy_listed(source, tree)
        if version is not None:
            changelog = tree / "debian" / "changelog"
            text = re.sub(r"\(\S+\)", f"({version})", changelog.read_text(), count=1)
            changelog.write_text(text)
        done = subprocess.run(  # nosec B603, B607: constant words
            ["dpkg-buildpackage", "-b", "-us", "-uc"],
            cwd=tree, env=_environment(compression, options), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        if done.returncode:
            raise subprocess.CalledProcessError(
                done.returncode, done.args, "\n".join(done.stdout.splitlines()[-40:])
            )
        return [Path(shutil.copy(file, out)) for file in sorted(Path(place).glob("*.deb"))]


def _environment(compression: str, options: str) -> dict[str, str]:
    """Return the environment without variables of this Python, make and its tests."""
    dropped = ("PYTHON", "VIRTUAL_ENV", "MAKE", "MFLAGS", "QMD_", "PYTEST")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    chosen = {"DEB_BUILD_OPTIONS": options} if options else {}
    return {**kept, **chosen, "QMD_DEB_COMPRESSION": compression}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--version", help="instead of that of debian/changelog")
    arguments = parser.parse_args()
    if lacking := missing():
        print(f"Debian packages need: apt-get install {' '.join(lacking)}", file=sys.stderr)
        return 1
    try:
        files = build(arguments.out, version=arguments.version)
    except subprocess.CalledProcessError as error:
        print(error.stdout, file=sys.stderr)
        return 1
    print(*files, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
