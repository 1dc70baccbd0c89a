"""Install qmd as a service of this host; `make install` calls it, and so does `debian/rules`.

    PREFIX/lib/qmd/                   the application and its locked dependencies
    PREFIX/bin/qmd                    its command
    PREFIX/lib/systemd/system/        the units of the daemon, the doors and the console
    PREFIX/lib/{sysusers,tmpfiles}.d/ the users and their folders
    PREFIX/share/man/, .../           man pages, and completion for shells
    PREFIX/share/qmd/                 dashboards and alert rules
    PREFIX/share/doc/qmd/             licence, changes, example configuration
    SYSCONFDIR/qmd/qmd.toml           the configuration, if there is none yet

SYSCONFDIR is /etc below the prefixes /usr and /usr/local, else PREFIX/etc.  The dependencies are
copied from the environment that runs this file, at the versions of requirements.lock: exactly the
tested versions are installed, and the installing user (often root) downloads and builds nothing.
The libraries of an extra are copied if that environment has them; `--only` installs one part of
PARTS, and needs them.
"""

import argparse
import compileall
import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
PACKAGES = ("protocol", "storage", "qmd", "pipeline")
BASE = "qmd"
# Files of an installed distribution that differ from one environment to the next, unused here.
NOT_COPIED = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})


@dataclass(frozen=True)
class Part:
    """The extras of pyproject.toml, the units, and the folders of `deploy` of one package."""

    extras: tuple[str, ...]
    units: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    #: Small libraries that several other parts need: a file belongs to one package.
    common: tuple[str, ...] = ()


PARTS = {
    # The parser of the HTTP door is small, and the doors for metrics and the console need it too.
    BASE: Part(
        ("directory", "http"),
        units=(
            *("qmd.service", "qmd.socket", "qmd-service@.service", "qmd-door-http.service"),
            *("qmd-bridge.service", "qmd-door-srmp.service", "qmd-trigger.service"),
            *("qmd.sysusers", "qmd.tmpfiles"),
        ),
        common=("urllib3",),
    ),
    "console": Part(("console",), units=("qmd-console.service",)),
    "metrics": Part(
        ("metrics",), units=("qmd-door-metrics.service",), shared=("grafana", "prometheus")
    ),
    "amqp": Part(("amqp",), units=("qmd-door-amqp.service",)),
    "traces": Part(("traces",), units=("qmd-traces.service",)),
    # Bridges to brokers of AMQP need the part "amqp".
    "bridge": Part(("bridge-kafka", "bridge-nats", "bridge-s3")),
}

# -I: neither the caller's environment nor a user's site folder can change what runs.
LAUNCHER = """\
#!{python} -I
import os
import sys

prefix = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path.insert(0, os.path.join(prefix, "lib", "qmd"))

from qmd.command import main  # noqa: E402

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
        self.shared = self.staged(prefix / "share/qmd")

    def unit(self, name: str) -> Path:
        """Return the place of a file of `deploy` for systemd."""
        places = {".sysusers": "sysusers.d/qmd.conf", ".tmpfiles": "tmpfiles.d/qmd.conf"}
        place = places.get(Path(name).suffix, f"systemd/system/{name}")
        return self.staged(self.prefix / "lib" / place)

    def staged(self, path: Path) -> Path:
        """Return `path` below DESTDIR, where it is written now."""
        return self.destdir / path.relative_to("/")


def install(layout: Layout, part: str | None = None, *, compiled: bool = True) -> None:
    """Install all parts, or one.  `compiled`: with compiled modules."""
    for name in PARTS if part is None else [part]:
        if name == BASE:
            _install_base(layout, needed=part is not None)
        else:
            _install_libraries(layout, name, needed=part is not None)
        _install_files(layout, PARTS[name])
    if compiled:
        # Tracebacks show the final paths, not those of a packager's staging folder.
        staging = None if layout.destdir == Path("/") else layout.destdir
        compileall.compile_dir(
            layout.application, quiet=1, stripdir=staging, prependdir="/" if staging else None
        )


def _install_base(layout: Layout, *, needed: bool) -> None:
    fresh = layout.application.with_name(".qmd-new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name, version in _locked().items():
        _copy_distribution(name, version, fresh)
    for name in _libraries(BASE, needed=needed):
        _copy_distribution(name, importlib.metadata.version(name), fresh)
    _copy_own_packages(fresh)
    shutil.rmtree(layout.application, ignore_errors=True)
    fresh.rename(layout.application)
    launcher = LAUNCHER.format(python=_interpreter())
    _write(layout.staged(layout.command), launcher, mode=0o755)
    for place, text in _generated().items():
        _write(layout.staged(layout.prefix / place), text)
    for document in ("LICENSE", "CHANGELOG.md", "deploy/README.md", "deploy/qmd.toml"):
        _write(layout.documents / Path(document).name, (SOURCE / document).read_text())
    configuration = layout.staged(layout.configuration)
    if not configuration.exists():
        _write(configuration, (SOURCE / "deploy/qmd.toml").read_text())


def _install_libraries(layout: Layout, part: str, *, needed: bool) -> None:
    present = {*map(_normalized, _locked()), *_libraries(BASE, needed=False)}
    for name in _libraries(part, needed=needed):
        if name not in present:
            _copy_distribution(name, importlib.metadata.version(name), layout.application)


def _install_files(layout: Layout, part: Part) -> None:
    for name in part.units:
        text = (SOURCE / "deploy" / name).read_text()
        text = text.replace("/usr/local/", f"{layout.prefix}/")
        text = text.replace("/etc/qmd/qmd.toml", str(layout.configuration))
        _write(layout.unit(name), text)
    for folder in part.shared:
        for file in sorted((SOURCE / "deploy" / folder).iterdir()):
            if ".test." not in file.name:
                _write(layout.shared / folder / file.name, file.read_text())


def _generated() -> dict[Path, str]:
    """Return the man pages and the scripts for shells, by their places below the prefix."""
    sys.path.insert(0, str(SOURCE))
    from release.manual.files import texts

    return {Path(place): text for place, text in texts().items()}


def _old_generated(layout: Layout) -> Iterator[Path]:
    """Return installed files of `_generated`, without what is needed to make them."""
    share = layout.staged(layout.prefix / "share")
    for pattern in (
        *("man/man1/qmd.1", "man/man1/qmd-*.1", "man/man5/qmd.toml.5"),
        *("bash-completion/completions/qmd", "zsh/site-functions/_qmd"),
        "fish/vendor_completions.d/qmd.fish",
    ):
        yield from share.glob(pattern)


def uninstall(layout: Layout) -> None:
    for folder in (layout.application, layout.documents, layout.shared):
        shutil.rmtree(folder, ignore_errors=True)
    units = [layout.unit(name) for part in PARTS.values() for name in part.units]
    for file in (layout.staged(layout.command), *units, *_old_generated(layout)):
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


def _libraries(part: str, *, needed: bool) -> list[str]:
    """Return the distributions of a part's extras that this environment has.

    Raises InstallError if `needed` and one is missing.
    """
    import tomllib  # not at the top: `uninstall` works with any Python 3

    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    requirements = [
        each for extra in PARTS[part].extras for each in project["optional-dependencies"][extra]
    ]
    for requirement in (*requirements, *PARTS[part].common):
        if not _add_library(requirement, found) and needed:
            raise InstallError(f"{requirement} is not in this environment")
    return sorted(found - set(map(_normalized, _locked())))


def _add_library(requirement: str, found: set[str]) -> bool:
    """Add a distribution and those that it requires; return whether it is there.

    pip has evaluated the conditions of requirements: those that do not apply are not installed.
    """
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None, requirement
    name = _normalized(match[0])
    if name in found:
        return True
    try:
        requirements = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return False
    found.add(name)
    for each in requirements:
        if "extra ==" not in each:
            _add_library(each, found)
    return True


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


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
        is_ours = ".." not in file.parts and "__pycache__" not in file.parts
        if is_ours and file.name not in NOT_COPIED:
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
    parser.add_argument("--only", choices=PARTS, help="one part, for packagers")
    parser.add_argument("--no-compile", action="store_true", help="without compiled modules")
    parser.add_argument("--uninstall", action="store_true", help="keeps configuration and data")
    options = parser.parse_args()
    os.umask(0o022)  # the service's user must be able to read what root installs
    try:
        layout = Layout(options.prefix, Path(options.destdir or "/").absolute())
        if options.uninstall:
            uninstall(layout)
            return
        install(layout, options.only, compiled=not options.no_compile)
    except (InstallError, OSError) as error:
        sys.exit(f"install: {error}")
    print(f"installed {layout.staged(layout.command)}")


if __name__ == "__main__":
    main()
