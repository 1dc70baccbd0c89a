"""The settings of a session of the pipeline."""

from pathlib import Path

import pytest

from pipeline.spark import archive_maker, class_archive
from pipeline.spark.session import java_options, spark_places
from pipeline.spark.spark_home import light_home


def test_a_session_works_in_utc(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_workers_use_the_python_of_the_driver(spark):
    import sys

    def reported(batches):
        for batch in batches:
            batch["id"] = sys.executable
            yield batch

    (row,) = spark.range(1).mapInPandas(reported, "id string").collect()

    assert row.id == sys.executable


def test_workers_import_the_installed_spark_and_not_an_archive(spark):
    def reported(batches):
        import pyspark

        for batch in batches:
            batch["id"] = pyspark.__file__
            yield batch

    (row,) = spark.range(1).mapInPandas(reported, "id string").collect()

    assert ".zip" not in row.id


def test_a_home_of_links_is_made_once(tmp_path):
    (tmp_path / "spark" / "bin").mkdir(parents=True)
    (tmp_path / "spark" / "python" / "lib").mkdir(parents=True)
    (tmp_path / "spark" / "python" / "lib" / "pyspark.zip").touch()
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    home = light_home(tmp_path / "spark", environment)

    assert [each.name for each in home.iterdir()] == ["bin"]
    assert light_home(tmp_path / "spark", environment) == home


def test_java_is_started_with_one_collector_and_without_checks_of_arrow_data(monkeypatch):
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)

    options = java_options("-Dmine=1", is_local=True).split()
    (log,) = [one for one in options if one.startswith("-Dlog4j2.configurationFile=file://")]
    assert Path(log.partition("file://")[2]).is_file()  # otherwise Java reports errors at its start

    assert "-Dmine=1" in options
    assert "-XX:+UseParallelGC" in options
    assert "-Darrow.enable_unsafe_memory_access=true" in options
    assert java_options("-XX:+UseG1GC", is_local=True).count("GC") == 1
    assert "GC" not in java_options("", is_local=False)
    assert (
        java_options("-Darrow.enable_unsafe_memory_access=false", is_local=True).count(
            "unsafe_memory_access"
        )
        == 1
    )


@pytest.mark.parametrize("where", ["JAVA_TOOL_OPTIONS", "SPARK_CONF_DIR"])
def test_a_collector_that_is_already_set_is_not_set_again(monkeypatch, tmp_path, where):
    """Java does not start with two collectors."""
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.defaultJavaOptions  -XX:+UseG1GC\n")
    monkeypatch.setenv(where, "-XX:+UseG1GC" if where == "JAVA_TOOL_OPTIONS" else str(tmp_path))

    assert "GC" not in java_options("", is_local=True)


def test_an_archive_of_classes_is_for_one_spark_one_java_and_one_class_path(monkeypatch, tmp_path):
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    home, java = tmp_path / "spark-1", tmp_path / "java"
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "core.jar").write_bytes(b"1")
    java.mkdir()
    assert class_archive.archive_file(home, java) is None, "Java names no release"
    (java / "release").write_text('JAVA_VERSION="17"')
    file = class_archive.archive_file(home, java)
    assert file.parent == tmp_path
    assert class_archive.archive_options(home, java, {}) == ()

    file.touch()
    found = class_archive.archive_options(home, java, {})
    assert found[0] == f"-XX:SharedArchiveFile={file}"
    assert class_archive.archive_options(home, java, {"spark.driver.extraClassPath": "x"}) == ()
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    assert class_archive.archive_options(home, java, {}) == ()
    (home / "jars" / "core.jar").write_bytes(b"12")
    assert class_archive.archive_file(home, java) != file


def test_archives_that_no_session_uses_are_removed(tmp_path):
    (tmp_path / "spark-1" / "jars").mkdir(parents=True)
    (tmp_path / "spark-2" / "jars").mkdir(parents=True)
    names = ("spark-1-a.jsa", "spark-1-b.jsa", "spark-2-c.jsa", "spark-3-d.jsa")
    for name in names:
        (tmp_path / name).touch()

    archive_maker._remove_others(tmp_path / "spark-1-b.jsa")

    assert {each.name for each in tmp_path.glob("*.jsa")} == {"spark-1-b.jsa", "spark-2-c.jsa"}


def test_a_session_uses_the_archive_and_prints_nothing_about_it(spark, capfd):
    file = class_archive.archive_file(*spark_places())
    if file is None or not file.is_file():
        pytest.skip("no archive of classes: make one with python -m pipeline.spark.archive_maker")
    management = spark._jvm.java.lang.management.ManagementFactory
    options = list(management.getRuntimeMXBean().getInputArguments())

    assert f"-XX:SharedArchiveFile={file}" in options
    assert spark.range(3).count() == 3
    assert "archive" not in capfd.readouterr().out
