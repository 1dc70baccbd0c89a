"""A Spark session set up as the pipeline needs it.

    from pipeline.spark.session import spark_session

    spark = spark_session("orders to the lake")

Local by default; on a cluster the same settings hold, and what belongs to one machine only is left
out.  A session that is there already is taken as it is, with the settings that can still change.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.spark.java import NoJava, java_home, require_java
from pipeline.spark.spark_home import light_home

__all__ = ["LOCAL", "NoJava", "require_java", "spark_session", "use_here"]

LOCAL = "local[2]"

_LOG = Path(__file__).with_name("log4j2.properties")

# Each is measured or explained in docs/pipeline.md, "Settings".
_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Off by default, and without it filters reach no Python source.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # Its own 15 s are short for a Python process on a machine that is busy.
    "spark.python.authenticate.socketTimeout": "120s",
}
_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    # The default of 200 makes a stream with state ten times slower on one machine.
    "spark.sql.shuffle.partitions": "4",
}

_OPTIONS = "spark.driver.extraJavaOptions"
# Arrow looks whether each value that Java reads of a column lies within it; numpy has made them.
_UNCHECKED = (
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
)
# The usual collector runs beside the work, and there is no processor to spare; two of them named
# keep Java from starting.
_COLLECTOR = "-XX:+UseParallelGC"
_A_COLLECTOR = re.compile(r"-XX:\+Use\w*GC\b")
_JAVAS_OWN = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


def spark_session(app: str, master: str = LOCAL, conf: Mapping[str, str] | None = None) -> Any:
    """The `SparkSession` of this process.  `conf` goes before the settings of this module.

    Raises NoJava, whose text is one line that says what to do, and ImportError where pyspark is
    not installed.
    """
    is_local = master.startswith("local")
    _prepare_environment(is_local=is_local)
    from pyspark.sql import SparkSession

    settings = {**_ALWAYS, **(_LOCAL if is_local else {}), **(conf or {})}
    settings[_OPTIONS] = java_options(settings.get(_OPTIONS, ""), is_local=is_local)
    builder = SparkSession.builder.appName(app).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    use_here(session)
    return session


def use_here(session: Any) -> None:
    """Let this thread write to queues too: only where a thread has an active session does Spark 4.3
    find a format for writing that is Python's, and only the one that made the session has it."""
    java = getattr(session, "_jvm", None)  # Spark Connect has none, and no need of it
    if java is not None:
        session._get_j_spark_session_class(java).setActiveSession(session._jsparkSession)


def java_options(given: str, *, is_local: bool) -> str:
    """What Java is started with: what was given, and what it leaves open."""
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
    """Where the options of all sessions of this machine are, if there are any."""
    folder = os.environ.get("SPARK_CONF_DIR")
    home = os.environ.get("SPARK_HOME")
    if folder is None and home is not None:
        folder = f"{home}/conf"
    return [] if folder is None else [Path(folder) / "spark-defaults.conf"]


def _prepare_environment(*, is_local: bool) -> None:
    """What the launcher of Java, and through it every Python process, inherits from here."""
    os.environ["JAVA_HOME"] = str(java_home())
    # Else the `python3` that is first on the PATH becomes the worker, with other packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local:
        if "SPARK_HOME" not in os.environ:
            import pyspark

            os.environ["SPARK_HOME"] = str(light_home(Path(pyspark.__file__).parent))
        # Else it looks for an interface, and may choose one that goes away.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
