"""Install qmd as a service of this host; `make install` calls it.

    PREFIX/lib/qmd/                   the application and its locked dependencies
    PREFIX/bin/qmd                    its command
    PREFIX/lib/systemd/system/        qmd.service, qmd.socket, qmd-service@.service
    PREFIX/lib/{sysusers,tmpfiles}.d/ the user qmd and its folders
    PREFIX/share/doc/qmd/             licence, changes, example configuration
    SYSCONFDIR/qmd/qmd.toml           the configuration, if there is none yet

SYSCONFDIR is /etc below the prefixes /usr and /usr/local, else PREFIX/etc.  The dependencies are
copied from the environment that runs this file, at the versions of requirements.lock: exactly the
tested versions are installed, and the installing user (often root) downloads and builds nothing.
The extra `directory` is copied if that environment has it.
"""

import argparse
import compileall
import contextlib
import importlib.metadata
import os
import re
import shutil
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
PACKAGES = ("protocol", "storage", "qmd", "pipeline")
# Of the extra `directory`: LDAP's dependencies, and those of `bind = "negotiate"`.
DIRECTORY_EXTRA = ("sansldap", "pyspnego", "cryptography", "cffi", "pycparser")

# -I: neither the caller's environment nor a user's site folder can change what runs.
LAUNCHER = """\
#!{python} -I
import os
import sys

prefix = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path.insert(0, os.path.join(prefix, "lib", "qmd"))

from qmd.cli import main  # noqa: E402

sys.exit(main())
"""


class InstallError(Exception):
    """The environment or the folders are unsuitable; no usable installation was made."""


class Layout:
    """The place of each part: `prefix` on the running system, below `destdir` for staging."""

    def __init__(self, prefix: Path, destdir: Path) -> None:
        if not prefix.is_absolute():
            raise InstallError(f"the prefix must be an absolute path: {prefix}")
        system_wide = prefix in (Path("/usr"), Path("/usr/local"))
        self.prefix = prefix
        self.destdir = destdir
        self.command = prefix / "bin/qmd"
        self.configuration = (Path("/etc") if system_wide else prefix / "etc") / "qmd/qmd.toml"
        self.application = self.staged(prefix / "lib/qmd")
        self.documents = self.staged(prefix / "share/doc/qmd")
        self.units = {
            "qmd.service": self.staged(prefix / "lib/systemd/system/qmd.service"),
            "qmd-service@.service": self.staged(prefix / "lib/systemd/system/qmd-service@.service"),
            "qmd-door-http.service": self.staged(
                prefix / "lib/systemd/system/qmd-door-http.service"
            ),
            "qmd-door-amqp.service": self.staged(
                prefix / "lib/systemd/system/qmd-door-amqp.service"
            ),
            "qmd-door-metrics.service": self.staged(
                prefix / "lib/systemd/system/qmd-door-metrics.service"
            ),
            "qmd-traces.service": self.staged(prefix / "lib/systemd/system/qmd-traces.service"),
            "qmd-trigger.service": self.staged(prefix / "lib/systemd/system/qmd-trigger.service"),
            "qmd-console.service": self.staged(prefix / "lib/systemd/system/qmd-console.service"),
            "qmd.socket": self.staged(prefix / "lib/systemd/system/qmd.socket"),
            "qmd.sysusers": self.staged(prefix / "lib/sysusers.d/qmd.conf"),
            "qmd.tmpfiles": self.staged(prefix / "lib/tmpfiles.d/qmd.conf"),
        }

    def staged(self, path: Path) -> Path:
        """Return `path` below DESTDIR, where it is written now."""
        return self.destdir / path.relative_to("/")


def install(layout: Layout) -> None:
    fresh = layout.application.with_name(".qmd-new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name, version in _locked().items():
        _copy_distribution(name, version, fresh)
    for name, version in _extras().items():
        _copy_distribution(name, version, fresh)
    _copy_own_packages(fresh)
    shutil.rmtree(layout.application, ignore_errors=True)
    fresh.rename(layout.application)
    # Tracebacks show the final paths, not those of a packager's staging folder.
    staging = None if layout.destdir == Path("/") else layout.destdir
    compileall.compile_dir(
        layout.application, quiet=1, stripdir=staging, prependdir="/" if staging else None
    )
    launcher = LAUNCHER.format(python=_interpreter())
    _write(layout.staged(layout.command), launcher, mode=0o755)
    for name, target in layout.units.items():
        text = (SOURCE / "deploy" / name).read_text()
        text = text.replace("/usr/local/", f"{layout.prefix}/")
        text = text.replace("/etc/qmd/qmd.toml", str(layout.configuration))
        _write(target, text)
    for document in ("LICENSE", "CHANGELOG.md", "deploy/README.md", "deploy/qmd.toml"):
        _write(layout.documents / Path(document).name, (SOURCE / document).read_text())
    configuration = layout.staged(layout.configuration)
    if not configuration.exists():
        _write(configuration, (SOURCE / "deploy/qmd.toml").read_text())


def uninstall(layout: Layout) -> None:
    for folder in (layout.application, layout.documents):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (layout.staged(layout.command), *layout.units.values()):
        file.unlink(missing_ok=True)


def _interpreter() -> Path:
    """Return the environment's own Python: compiled modules fit no other."""
    python = Path(sys.executable).resolve()
    if python.is_relative_to("/root") or python.is_relative_to("/home"):
        print(f"note: the service's user cannot see {python}; for a host, use a system's Python")
    return python


def _locked() -> dict[str, str]:
    """Return name and version of every distribution that qmd needs to run."""
    lines = (SOURCE / "requirements.lock").read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+)", lines, re.MULTILINE))


def _extras() -> dict[str, str]:
    """Return the distributions for Active Directory that the environment has."""
    found = {}
    for name in DIRECTORY_EXTRA:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _copy_distribution(name: str, version: str, target: Path) -> None:
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError as cause:
        raise InstallError(f"{name} is not in this environment: run `make setup`") from cause
    if distribution.version != version:
        raise InstallError(
            f"{name} is at {distribution.version}, the lock says {version}: run `make setup`"
        )
    for file in distribution.files or ():
        # Scripts lie outside the environment's library and name its interpreter.
        if ".." not in file.parts and "__pycache__" not in file.parts:
            copy = target / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.locate(), copy)


def _copy_own_packages(target: Path) -> None:
    import tomllib  # not at the top: `uninstall` works with any Python 3

    for package in PACKAGES:
        shutil.copytree(
            SOURCE / package, target / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    folder = f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata = target / folder / "METADATA"
    _write(
        metadata,
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n",
    )


def _write(path: Path, text: str, *, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def main() -> None:
    parser = argparse.ArgumentParser(description="Install qmd as a service of this host.")
    parser.add_argument("--prefix", type=Path, default=Path("/usr/local"))
    parser.add_argument("--destdir", default="", help="staging folder, for packagers")
    parser.add_argument("--uninstall", action="store_true", help="keeps configuration and data")
    options = parser.parse_args()
    os.umask(0o022)  # the service's user must be able to read what root installs
    try:
        layout = Layout(options.prefix, Path(options.destdir or "/").absolute())
        if options.uninstall:
            uninstall(layout)
            return
        install(layout)
    except (InstallError, OSError) as error:
        sys.exit(f"install: {error}")
    print(f"installed {layout.staged(layout.command)}")


if __name__ == "__main__":
    main()
