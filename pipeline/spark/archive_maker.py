"""Maker of the class archive (class_archive.py) for this Java and this release of Spark.

    python -m pipeline.spark.archive_maker

runs queries of the usual kinds in a session, whose Java writes the classes that it has loaded.
"""

from __future__ import annotations

import contextlib
import os
import subprocess  # nosec B404: own module, no shell
import sys
import tempfile
from pathlib import Path

from pipeline.spark.class_archive import archive_file
from pipeline.spark.java import NoJava
from pipeline.spark.session import spark_places, spark_session

_MAKES_S_MAX = 300.0
# The queries run once: what the second compiler makes of them is not in the archive.
_SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def make() -> Path | None:
    """Make the archive unless it is there; return its place, or None if it cannot be made."""
    home, java = spark_places()
    file = archive_file(home, java)
    if file is None or file.is_file():
        return file
    # Other processes may make it at the same time: each makes its own, and renames it.
    descriptor, name = tempfile.mkstemp(prefix=f"{file.name}-", dir=file.parent)
    os.close(descriptor)
    part = Path(name)
    part.unlink()  # Java makes it
    try:
        subprocess.run(  # nosec B603: fixed arguments
            [sys.executable, "-m", "pipeline.spark.archive_maker", str(part)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_MAKES_S_MAX,
        )
        part.rename(file)
        _remove_others(file)
    except (OSError, subprocess.SubprocessError):
        return None
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
    return file


def _remove_others(file: Path) -> None:
    """Remove archives of other releases of this Spark, and those of folders that are gone."""
    for each in file.parent.glob("spark-*.jsa"):
        home = each.with_name(each.name.rpartition("-")[0])
        if each != file and (file.name.startswith(f"{home.name}-") or not (home / "jars").exists()):
            with contextlib.suppress(OSError):
                each.unlink()


def _record(part: Path) -> None:
    """Run queries of the usual kinds, and let Java write the classes that it has loaded."""
    from pyspark import SparkContext

    settings = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={part} {_SHORT}"}
    session = spark_session("class archive", "local[1]", settings)
    rows = session.createDataFrame([(number, f"{number}") for number in range(100)], ["a", "b"])
    with tempfile.TemporaryDirectory(prefix="qmd-spark-") as folder:
        rows.write.parquet(f"{folder}/rows")
        rows.write.json(f"{folder}/json")
        read = session.read.parquet(f"{folder}/rows")
        joined = read.join(session.read.schema(rows.schema).json(f"{folder}/json"), "a")
        joined.groupBy("a").count().orderBy("a").toPandas()
        session.sql("SELECT count(*) AS rows, max(id) FROM range(10)").collect()
        stream = session.readStream.schema(rows.schema).parquet(f"{folder}/rows")
        query = (
            stream.writeStream.format("parquet")
            .option("path", f"{folder}/copied")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    gateway = SparkContext._gateway
    assert gateway is not None
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # Java ends, and writes the archive
    gateway.proc.wait(_MAKES_S_MAX)


def main(arguments: list[str]) -> None:
    if arguments:
        _record(Path(arguments[0]))
        return
    try:
        made = make()
    except (ImportError, NoJava) as error:
        print(f"no class archive was made: {error}")
    else:
        print("no class archive was made: Java cannot make one" if made is None else made)


if __name__ == "__main__":
    main(sys.argv[1:])
