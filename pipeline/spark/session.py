"""A Spark session with the settings that the pipeline needs.

    from pipeline.spark.session import spark_session

    spark = spark_session("orders to the lake")

The default is local mode; a cluster gets the same settings without those of a single machine.  An
existing session is reused, with the settings that can still change.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.spark.class_archive import archive_options
from pipeline.spark.java import NoJava, java_home, require_java
from pipeline.spark.spark_home import light_home

__all__ = ["LOCAL", "NoJava", "require_java", "spark_session", "use_here"]

LOCAL = "local[2]"

_LOG = Path(__file__).with_name("log4j2.properties")

# Each is measured or explained in docs/pipeline.md, "Settings".
_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # The default of 15 s is too short for a Python process on a busy machine.
    "spark.python.authenticate.socketTimeout": "120s",
}
_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    # The default of 200 makes a stateful stream ten times slower on one machine.
    "spark.sql.shuffle.partitions": "4",
}

_OPTIONS = "spark.driver.extraJavaOptions"
# Skip Arrow's bounds checks on each value that Java reads: numpy wrote the columns.
_UNCHECKED = (
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
)
# The default collector runs concurrently with the work and needs a spare processor.  Java does not
# start if two collectors are named.
_COLLECTOR = "-XX:+UseParallelGC"
_A_COLLECTOR = re.compile(r"-XX:\+Use\w*GC\b")
_JAVAS_OWN = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


def spark_session(app: str, master: str = LOCAL, conf: Mapping[str, str] | None = None) -> Any:
    """Return the `SparkSession` of this process.  `conf` overrides the settings of this module.

    Raises NoJava, with the remedy as one line of text, and ImportError if pyspark is not
    installed.
    """
    is_local = master.startswith("local")
    _prepare_environment(is_local=is_local)
    from pyspark.sql import SparkSession

    settings = {**_ALWAYS, **(_LOCAL if is_local else {}), **(conf or {})}
    settings[_OPTIONS] = java_options(settings.get(_OPTIONS, ""), is_local=is_local)
    if is_local and "-XX:ArchiveClassesAtExit" not in settings[_OPTIONS]:
        home, java = Path(os.environ["SPARK_HOME"]), Path(os.environ["JAVA_HOME"])
        settings[_OPTIONS] = " ".join((settings[_OPTIONS], *archive_options(home, java, settings)))
    builder = SparkSession.builder.appName(app).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    use_here(session)
    return session


def spark_places() -> tuple[Path, Path]:
    """Return the folders of Spark and of Java that local sessions use.  Raises NoJava."""
    _prepare_environment(is_local=True)
    return Path(os.environ["SPARK_HOME"]), Path(os.environ["JAVA_HOME"])


def use_here(session: Any) -> None:
    """Make the session active in this thread, so that it can write to queues.

    Spark 4.3 finds a Python format for writing only in a thread with an active session, and only
    the thread that created the session has one.
    """
    java = getattr(session, "_jvm", None)  # Spark Connect has none, and needs none
    if java is not None:
        session._get_j_spark_session_class(java).setActiveSession(session._jsparkSession)


def java_options(given: str, *, is_local: bool) -> str:
    """Return the options for Java: the given ones, and defaults for the rest."""
    options = [given] if given else []
    if "log4j" not in given:
        options.append(f"-Dlog4j2.configurationFile={_LOG.as_uri()}")
    if is_local:
        options += [one for one in _UNCHECKED if one.partition("=")[0] not in given]
        elsewhere = [os.environ.get(name, "") for name in _JAVAS_OWN]
        elsewhere += [path.read_text() for path in _defaults() if path.is_file()]
        if not any(map(_A_COLLECTOR.search, [given, *elsewhere])):
            options.append(_COLLECTOR)
    return " ".join(options)


def _defaults() -> list[Path]:
    """Return the files with this machine's default options for sessions."""
    folder = os.environ.get("SPARK_CONF_DIR")
    home = os.environ.get("SPARK_HOME")
    if folder is None and home is not None:
        folder = f"{home}/conf"
    return [] if folder is None else [Path(folder) / "spark-defaults.conf"]


def _prepare_environment(*, is_local: bool) -> None:
    """Set the environment that Java's launcher and every Python process inherit."""
    os.environ["JAVA_HOME"] = str(java_home())
    # Otherwise workers use the first `python3` on the PATH, with other packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local:
        if "SPARK_HOME" not in os.environ:
            import pyspark

            os.environ["SPARK_HOME"] = str(light_home(Path(pyspark.__file__).parent))
        # Otherwise Spark chooses an interface, and may choose one that disappears.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
