"""A folder that passes for SPARK_HOME and spares every Python worker most of its start.

Spark puts `python/lib/pyspark.zip` of its home before everything else that its workers import.
What comes out of an archive is compiled anew by every process: that is 1.1 s of work for a worker
where the installed package takes 0.3 s, and a stream has eight of them.  So in local mode Spark
gets a folder of links to its home, without that archive; workers find the installed package, which
is the same.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

ARCHIVES = "python"  # the folder that is left out


def light_home(spark: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of links for the installed package `spark`; itself, where none can be made."""
    if not (spark / ARCHIVES / "lib" / "pyspark.zip").exists():
        return spark
    name = "spark-" + hashlib.sha256(str(spark).encode()).hexdigest()[:16]
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    try:
        return _linked(Path(cache) / "qmd" / name, spark)
    except OSError:  # a user without a home, or with one that cannot be written
        return spark


def _linked(home: Path, spark: Path) -> Path:
    wanted = {each.name for each in spark.iterdir() if each.is_dir() and each.name != ARCHIVES}
    if home.is_dir() and {each.name for each in home.iterdir()} == wanted:
        return home
    home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Others may be making it at this moment: it appears whole, or not at all.
    part = Path(tempfile.mkdtemp(prefix=f"{home.name}-", dir=home.parent))
    for name in wanted:
        (part / name).symlink_to(spark / name)
    try:
        part.rename(home)
    except OSError:  # it was made meanwhile, or is of another release at the same place
        return part
    return home
