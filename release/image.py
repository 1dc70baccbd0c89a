"""A container image of qmd, built by buildah without a registry.

    python -m release.image [--name NAME] [--base TAR] [--packages FOLDER]       `make image`

The base is a minimal Debian of this computer's release, made by mmdebstrap; the Debian packages are
built first.  Neither needs root where users may have namespaces (the package `uidmap`).
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess  # nosec B404: buildah and mmdebstrap, without a shell
import sys
import tempfile
import uuid
from pathlib import Path

from release import deb
from release.dist import ROOT

#: Programs that a build needs, and the Debian packages that have them.
TOOLS = {"buildah": "buildah", "mmdebstrap": "mmdebstrap", "newuidmap": "uidmap"}
#: The packages that those of qmd depend on, and `ca-certificates` for TLS.
INCLUDED = (
    *("ca-certificates", "debconf", "libssl3", "libstdc++6", "passwd", "python3"),
    *("systemd-standalone-sysusers", "systemd-standalone-tmpfiles"),
)


def missing() -> list[str]:
    """Return the Debian packages that a build needs and this computer lacks."""
    lacking = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    return [*lacking, *deb.missing()]


def make_base(tar: Path) -> None:
    """Write the root folder of a minimal Debian into an archive."""
    codename = platform.freedesktop_os_release()["VERSION_CODENAME"]
    include = f"--include={','.join(INCLUDED)}"
    _run("mmdebstrap", "--quiet", "--variant=minbase", include, codename, str(tar))


def build(name: str, base: Path, packages: list[Path]) -> None:
    """Build the image `name` from the archive of a base, and Debian packages.

    Raises subprocess.CalledProcessError.
    """
    container = f"qmd-base-{uuid.uuid4()}"
    with tempfile.TemporaryDirectory() as context:
        for package in packages:
            shutil.copy(package, context)
        _run("buildah", "from", "--name", container, "scratch")
        try:
            _run("buildah", "add", "--quiet", container, str(base), "/")
            _run("buildah", "commit", "--quiet", container, f"{name}-base")
        finally:
            _run("buildah", "rm", container)
        # Health checks are no part of the format OCI.
        _run(
            *("buildah", "build", "--format", "docker", "--isolation", "chroot", "--pull-never"),
            *("--build-arg", f"BASE={name}-base", "--tag", name),
            *("--file", str(ROOT / "deploy" / "Containerfile"), context),
        )


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)  # nosec B603: words of above


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="localhost/qmd")
    parser.add_argument("--base", type=Path, help="the archive of a Debian, instead of a new one")
    parser.add_argument("--packages", type=Path, help="a folder with packages, instead of new ones")
    arguments = parser.parse_args()
    if lacking := missing():
        print(f"the image needs: apt-get install {' '.join(lacking)}", file=sys.stderr)
        return 1
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)  # nosec B103: mmdebstrap works there as another user
            base = arguments.base or Path(folder) / "base.tar"
            if arguments.base is None:
                make_base(base)
            if arguments.packages is None:
                packages = deb.build(Path(folder) / "packages")
            else:
                packages = sorted(arguments.packages.glob("*.deb"))
            build(arguments.name, base, packages)
    except subprocess.CalledProcessError as error:
        print(error.stdout or error, file=sys.stderr)
        return 1
    print(arguments.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
