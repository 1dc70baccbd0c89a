"""`qmd pipeline run archive` and `replay`: archive journals, and send a slice again."""

from __future__ import annotations

from typing import Any

import click

from pipeline.commands.job import Job, job_options
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.program import ExitCode, Failure


@click.command("archive")
@job_options(
    "Where `qmd ship` writes the journals: a folder, or a URL.",
    "The archive: a folder, or a URL.  Its tables and report.html are in _report there.",
)
def archive(job: Job) -> None:
    """Archive the journals of all closed days (UTC), each once; include late files."""
    import datetime

    from pipeline.jobs.archive import Archive
    from pipeline.report.archive_pages import archive_page

    lake = _only(job)
    today = datetime.datetime.now(datetime.UTC).date()
    archived = Archive(job.output)
    if job.dry_run:
        plan = archived.plan_days(lake, today=today)
        fresh = {day: files for day, files in plan.items() if files}
        count = sum(map(len, fresh.values()))
        job.say(
            {"days": sorted(fresh), "files": count, "known": len(plan) - len(fresh)},
            f"would read {count} files of {len(fresh)} days; {len(plan) - len(fresh)} days are"
            f" archived already; would write to {job.output}",
        )
        return
    # Under the lock: the size of the unread files, too, is not that of a moment before.
    with (
        job.exclusively(),
        job.session_of_size("archive", archived.unread_bytes(lake, today=today)) as spark,
    ):
        done = archived.compact(spark, lake, today=today, progress=job.progress)
        job.progress("the report")
        queues = archived.contents(spark)
        report = archived.write_report(queues, archive_page(archived.manifests(), queues, done))
    days = [{"day": each.day, "files": each.files, "messages": each.rows,
             "was_done": each.was_done, "broken_files": [file for file, _ in each.broken]}
            for each in done]  # fmt: skip
    lines = [
        f"{each['day']}  {each['messages']:>12,} messages of {each['files']} files"
        + ("  (done before)" if each["was_done"] else "")
        for each in days
    ]
    lines += [f"skipped, damaged: {file}: {why}" for each in done for file, why in each.broken]
    text = "\n".join([*(lines or ["no closed day has journals"]), f"see {report}"])
    job.say({"days": days, "report": report}, text)


@click.command("replay")
@job_options("The archive.", "The folder for the table of sent messages, and report.html.")
@click.option("--to", "destination", required=True, help="The queue that gets the messages.")
@click.option("--job-id", required=True, help="The same for every try: each message is sent once.")
@click.option("--where", "condition", default="", help="SQL on the columns of messages.")
@click.option("--since", default="", metavar="DAY", help="Days of arrival in the journal, in UTC.")
@click.option("--until", default="9999", metavar="DAY", show_default=False)
@click.option("--delivery", type=click.Choice(("recoverable", "transactional")), default=None)
@click.option("--without-replies", is_flag=True, help="Ask for no acknowledgments or responses.")
@click.option(
    "--rate", type=click.FloatRange(0, 1e9), default=0.0, help="Messages a second, at most."
)
@click.option("--batch", "batch_rows", type=click.IntRange(1, 200_000), default=5000)
@pass_configuration
def replay(
    configuration: Configuration,
    job: Job,
    destination: str,
    job_id: str,
    condition: str,
    since: str,
    until: str,
    delivery: str | None,
    without_replies: bool,
    rate: float,
    batch_rows: int,
) -> None:
    """Send archived messages again, with all of their properties, by arrival, each once.

    The queue manager is that of --config, or of --host.  They are new messages, with new ids.
    A job that was killed continues where it stopped when it is started again.
    """
    from functools import partial

    from pipeline.jobs.archive import Archive
    from pipeline.jobs.replay import Replay, ReplayFailed
    from pipeline.report.archive_pages import replay_page
    from pipeline.report.outcome import write_tables

    asked: dict[str, Any] = {
        "where": condition, "since": since, "until": until, "batch_rows": batch_rows,
    }  # fmt: skip
    archive = Archive(_only(job))
    try:
        # Begun first: messages are sent only if their page and table can be written.
        with (
            job.writing("replay") as draft,
            job.session_of_size("replay", archive.size(since, until)) as spark,
        ):
            work = Replay(spark, archive, job_id, **asked)
            if job.dry_run:
                count = work.count()
                job.say(
                    {"messages": count, "destination": destination},
                    f"{count} messages would be sent to {destination}",
                )
                return
            with configuration.connect_blocking() as qm:
                done = work.run(
                    qm,
                    destination,
                    delivery=delivery or "",
                    replies=not without_replies,
                    rate=rate,
                    progress=lambda sent, rows: job.progress(f"{sent:,} of {rows:,} sent"),
                )
            job.progress("the report")
            tables = {"slice": work.contents()}
            page = partial(replay_page, job_id, destination, asked, done, tables["slice"])
            write_tables(draft, tables, page)
            draft.commit()
    except ReplayFailed as error:
        raise Failure(ExitCode.FAILED, str(error), error.code) from error
    report = job.report_at(draft)
    job.say(
        {"sent": done.sent, "messages": done.rows, "destination": destination, "report": report},
        f"{done.sent} of {done.rows} messages sent to {destination} by this run\nsee {report}",
    )


def _only(job: Job) -> str:
    if len(job.inputs) > 1:
        raise click.BadParameter("there can be only one here", param_hint="--input")
    return job.inputs[0]
