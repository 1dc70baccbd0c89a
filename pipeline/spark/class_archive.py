"""A class archive: Java loads the classes of Spark parsed and verified from a file.

`archive_maker.py` makes it for one Java and one release of Spark, and sessions in local mode use
it: a session and its first queries take 7 s of processor time instead of 12.7.  It has 190 MB, in
the folder of caches.  Without an archive, or with one of another Java, sessions start as usual.

Source: JEP 350 (Java 13), "dynamic application class-data sharing".
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

# Why an archive is not used is for standard error: a job's standard output has its results.
_QUIETLY = ("-Xlog:disable", "-Xlog:all=warning:stderr")


def archive_file(home: Path, java: Path) -> Path | None:
    """Return the place of the archive for a folder of Spark and one of Java; None without one.

    A Java that does not name its release gets none.
    """
    digest = hashlib.sha256()
    try:
        digest.update((java / "release").read_bytes())
        for jar in sorted((home / "jars").iterdir()):
            digest.update(f"{jar.name} {jar.stat().st_size}\n".encode())
    except OSError:
        return None
    return home.with_name(f"{home.name}-{digest.hexdigest()[:16]}.jsa")


def archive_options(home: Path, java: Path, settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options of Java that use the archive, if there is one.

    An archive is for one class path: settings that change it leave the archive out.
    """
    if "SPARK_CONF_DIR" in os.environ or any("extraClassPath" in name for name in settings):
        return ()
    if any(name in settings for name in ("spark.jars", "spark.jars.packages")):
        return ()
    file = archive_file(home, java)
    if file is None or not file.is_file():
        return ()
    return (f"-XX:SharedArchiveFile={file}", *_QUIETLY)
