"""`qmd pipeline archive`: shipped journals become a few sorted files a day."""

from __future__ import annotations

import click

from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure


@click.command("archive")
@click.option("--input", "lake", required=True, help="Where `qmd ship` brings the journals.")
@click.option("--output", required=True, help="The archive: a folder, or a URL.")
@click.option("--master", default="local[2]", show_default=True, help="Where Spark runs.")
@json_option
def archive(lake: str, output: str, master: str, as_json: bool) -> None:
    """Archive the journals of all closed days (UTC), each once; late files are taken in."""
    import datetime
    from dataclasses import asdict

    from qmd.cli.output import print_rows

    try:
        from pipeline.jobs.archive import Archive
        from pipeline.session import NoJava, spark_session
    except ImportError as error:
        raise Failure(
            ExitCode.FAILED,
            f"this needs the extra spark ({error}): pip install 'qmd[spark]'",
            "pipeline_extra_missing",
        ) from error
    try:
        spark = spark_session("qmd archive", master)
    except NoJava as none:
        raise Failure(ExitCode.FAILED, str(none), "java_missing") from none
    try:
        today = datetime.datetime.now(datetime.UTC).date()
        done = Archive(output).compact(spark, lake, today=today)
    finally:
        spark.stop()
    print_rows(
        [asdict(each) for each in done],
        [("DAY", "day"), ("FILES", "files"), ("MESSAGES", "rows"), ("DONE BEFORE", "was_done")],
        as_json=as_json,
        none="no closed day has journals",
    )
