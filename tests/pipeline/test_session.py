"""What a session of the pipeline is set up for."""

from pipeline.spark_home import light_home


def test_a_session_works_in_utc_and_lets_filters_through(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"


def test_workers_are_the_python_of_the_driver(spark):
    import sys

    def told(batches):
        for batch in batches:
            batch["id"] = sys.executable
            yield batch

    (row,) = spark.range(1).mapInPandas(told, "id string").collect()

    assert row.id == sys.executable


def test_workers_import_the_installed_spark_and_not_an_archive_that_each_would_compile(spark):
    def told(batches):
        import pyspark

        for batch in batches:
            batch["id"] = pyspark.__file__
            yield batch

    (row,) = spark.range(1).mapInPandas(told, "id string").collect()

    assert ".zip" not in row.id


def test_a_home_of_links_is_made_once(tmp_path):
    (tmp_path / "spark" / "bin").mkdir(parents=True)
    (tmp_path / "spark" / "python" / "lib").mkdir(parents=True)
    (tmp_path / "spark" / "python" / "lib" / "pyspark.zip").touch()
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    home = light_home(tmp_path / "spark", environment)

    assert [each.name for each in home.iterdir()] == ["bin"]
    assert light_home(tmp_path / "spark", environment) == home
