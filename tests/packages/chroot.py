"""A minimal Debian below a folder, into which packages are installed."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.patience import END_S

#: Programs that make and use it, and the packages of Debian that it has from the beginning.
TOOLS = ("mmdebstrap", "unshare", "tar")
INCLUDED = "debconf,python3,systemd-standalone-sysusers,systemd-standalone-tmpfiles"

_ENTER = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'


def skip_without_tools() -> None:
    """Skip the test where no Debian can be made."""
    if os.geteuid() != 0:
        pytest.skip("only root can change its root folder")
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"not installed: {', '.join(lacking)}")


class Chroot:
    """A root folder with a Debian of the same release as this computer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        release = platform.freedesktop_os_release()
        if release.get("ID") != "debian":
            pytest.skip("this computer does not run Debian")
        words = ["--variant=minbase", f"--include={INCLUDED}", release["VERSION_CODENAME"]]
        done = subprocess.run(
            ["mmdebstrap", "--quiet", *words, str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"mmdebstrap failed: {done.stderr[-500:]}")
        folder.chmod(0o755)

    def enter(self, *words: str) -> list[str]:
        """Return the command that runs another one in here, with /proc."""
        return ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", _ENTER, str(self.folder), *words]

    def run(self, *words: str, input: str | None = None) -> str:
        """Run a command as root; return all its output."""
        done = subprocess.run(
            self.enter(*words),
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, input=input or "",
            text=True, check=False, timeout=END_S,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stdout[-3000:])
        return done.stdout

    def install(self, packages: list[Path]) -> str:
        """Install packages from files."""
        place = self.folder / "packages"
        place.mkdir(exist_ok=True)
        names = [Path(shutil.copy(package, place)).name for package in packages]
        # This system is thrown away: syncs would only take time.
        return self.run(
            "dpkg", "--force-unsafe-io", "--install", *(f"/packages/{name}" for name in names)
        )

    def path(self, place: str) -> Path:
        """Return a place of this system as the test sees it."""
        return self.folder / place.lstrip("/")

    def named(self, part: str) -> set[str]:
        """Return the files and folders of packages and services with a part in their names."""
        folders = ("etc", "usr", "lib", "var/lib", "run")
        known = ("var/lib/dpkg/", "var/lib/systemd/")  # the states of the tools themselves
        found = {
            str(path.relative_to(self.folder))
            for folder in folders
            for path in (self.folder / folder).rglob(f"*{part}*")
        }
        return {name for name in found if not name.startswith(known)}
