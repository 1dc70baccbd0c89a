"""The files of a checkpoint, as Spark writes them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.spark.checkpoint_files import BY_FILE_SYSTEM, SETTING, local_files


def setting(session: Any) -> str | None:
    found: str | None = session.conf.get(SETTING, None)
    return found


@pytest.mark.parametrize("place", ["/lake/checkpoint", "file:///lake/checkpoint"])
def test_a_local_checkpoint_is_written_by_the_file_system(spark, place):
    with local_files(spark, place):
        assert setting(spark) == BY_FILE_SYSTEM
    assert setting(spark) is None


@pytest.mark.parametrize("place", ["s3a://lake/checkpoint", "hdfs://lake/checkpoint"])
def test_other_checkpoints_are_written_as_spark_does(spark, place):
    with local_files(spark, place):
        assert setting(spark) is None


def test_a_setting_of_the_session_stays(spark):
    spark.conf.set(SETTING, "chosen")
    try:
        with local_files(spark, "/lake/checkpoint"):
            assert setting(spark) == "chosen"
        assert setting(spark) == "chosen"
    finally:
        spark.conf.unset(SETTING)


def test_a_query_goes_on_from_a_checkpoint_that_was_written_otherwise(spark, tmp_path):
    """Spark finds the files of either way, and keeps the setting of the start."""
    counted = []
    for quick in (False, True, False):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{len(counted)}.txt").write_text("a\n")
        rows = spark.readStream.text(str(tmp_path / "in")).groupBy("value").count()
        writer = (
            rows.writeStream.format("memory")
            .queryName(f"counted_{len(counted)}")
            .outputMode("complete")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        if quick:
            with local_files(spark, str(tmp_path / "checkpoint")):
                query = writer.start()
        else:
            query = writer.start()
        query.awaitTermination()
        counted += [row["count"] for row in spark.table(query.name).collect()]

    assert counted == [1, 2, 3]
