"""`qmd pipeline replay`: a slice of an archive is sent again, in order and once."""

from __future__ import annotations

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.program import ExitCode, Failure


@click.command("replay")
@click.option("--input", "where", required=True, help="The archive.")
@click.option("--to", "destination", required=True, help="The queue that gets the messages.")
@click.option("--job-id", required=True, help="The same for every try: each message is sent once.")
@click.option("--where", "condition", default="", help="SQL on the columns of messages.")
@click.option("--since", default="", metavar="DAY", help="Days of arrival in the journal, in UTC.")
@click.option("--until", default="9999", metavar="DAY", show_default=False)
@click.option("--delivery", type=click.Choice(("recoverable", "transactional")), default=None)
@click.option("--without-replies", is_flag=True, help="Ask nobody for acknowledgments or answers.")
@click.option("--rate", type=float, default=0.0, help="Messages a second, at most.")
@click.option("--batch", "batch_rows", type=click.IntRange(1, 200_000), default=5000)
@click.option("--master", default="local[2]", show_default=True, help="Where Spark runs.")
@click.option("--dry-run", is_flag=True, help="Only say how many messages it would be.")
@pass_configuration
def replay(
    configuration: Configuration,
    where: str,
    destination: str,
    job_id: str,
    condition: str,
    since: str,
    until: str,
    delivery: str | None,
    without_replies: bool,
    rate: float,
    batch_rows: int,
    master: str,
    dry_run: bool,
) -> None:
    """Send archived messages again, with all of their properties, by arrival, each once.

    The queue manager is that of --config, or of --host.  They are new messages, with new ids.
    A job that was killed goes on where it was when it is started again.
    """
    try:
        from pipeline.jobs.archive import Archive
        from pipeline.jobs.replay import Replay, ReplayFailed
        from pipeline.session import NoJava, spark_session
    except ImportError as error:
        raise Failure(
            ExitCode.FAILED,
            f"this needs the extra spark ({error}): pip install 'qmd[spark]'",
            "pipeline_extra_missing",
        ) from error
    try:
        spark = spark_session("qmd replay", master)
    except NoJava as none:
        raise Failure(ExitCode.FAILED, str(none), "java_missing") from none
    try:
        job = Replay(
            spark,
            Archive(where),
            job_id,
            where=condition,
            since=since,
            until=until,
            batch_rows=batch_rows,
        )
        if dry_run:
            click.echo(f"{job.count()} messages would be sent to {destination}")
            return
        with configuration.connect_blocking() as qm:
            done = job.run(
                qm,
                destination,
                delivery=delivery or "",
                replies=not without_replies,
                rate=rate,
                progress=lambda sent, rows: click.echo(f"{sent} of {rows}", err=True),
            )
    except ReplayFailed as error:
        raise Failure(ExitCode.FAILED, str(error), error.code) from error
    finally:
        spark.stop()
    click.echo(f"{done.sent} of {done.rows} messages sent to {destination} by this run")
