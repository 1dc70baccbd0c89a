"""What a session of the pipeline is set up for."""


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
