"""`qmd pipeline run` and `generate`: jobs over event logs, and logs of invented fleets.

Large libraries are imported only when a job runs.  docs/jobs.md
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pipeline.commands.archive import archive, replay
from pipeline.commands.exit_codes import FOUND, apart_from_findings, kinds_of
from pipeline.commands.job import Job, Progress, job_options, require
from pipeline.commands.seconds import Seconds
from pipeline.report.counted import counted
from qmd.cli.program import ExitCode, Failure, Group


@click.group(cls=Group)
def run() -> None:
    """Run a job over files that `qmd events export` or `qmd ship` wrote.

    Each writes Parquet tables and a page, report.html, that opens without a
    network.
    """


_over_logs = job_options(
    "The event logs: a folder with its subfolders, a file, or the URL of a store."
    "  May be given several times.",
    "The folder for the tables and report.html.",
)


@run.command()
@apart_from_findings
@_over_logs
@click.option(
    "--full",
    is_flag=True,
    help="Examine every message, also in streams that agree on both sides.",
)
@click.option(
    "--again", is_flag=True, help="Forget what was audited before, and read all files again."
)
@click.option(
    "--clock-tolerance",
    type=Seconds(0.001),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="The largest difference of clocks that counts as correct.",
)
@click.option(
    "--fail-on", default="any", show_default=True, metavar="KINDS",
    help="Which findings make the exit code 1: any, none, or kinds such as lost,duplicated.",
)  # fmt: skip
@click.pass_context
def audit(
    context: click.Context,
    job: Job,
    full: bool,
    again: bool,
    clock_tolerance: float,
    fail_on: str,
) -> None:
    """Prove that every message arrived once and in order, or name each that did not.

    Continues where the last audit into the same folder ended: files are read
    once, and undecided messages are decided when the missing log arrives.
    Exit code 1 means only that there are findings; an audit that failed ends
    with 70, and leaves the last results unchanged.
    """
    from pipeline.jobs.audit import presence
    from pipeline.jobs.audit.findings import ABOUT_HOSTS, KINDS, AuditSettings
    from pipeline.jobs.audit.job import audit as run_audit
    from pipeline.jobs.audit.state import State, StateVersionMismatch
    from pipeline.report.outcome import write_audit

    wanted = kinds_of(fail_on, [kind for kind in KINDS if kind not in ABOUT_HOSTS])
    files = job.files()
    chosen = AuditSettings(full=full, clock_tolerance_ms=int(clock_tolerance * 1000), timelines=5)
    with job.writing("audit") as draft:
        try:
            state = State.load(draft, again=again)
        except StateVersionMismatch as other:
            raise Failure(ExitCode.USAGE, str(other), "wrong_usage") from other
        fresh = state.unseen(files)
        if job.dry_run:
            job.say_plan(fresh, len(files) - len(fresh), ["findings", "open", "streams"])
            return
        with job.engine_for("audit", fresh) as engine:
            found = presence.find(job.inputs)
            result = run_audit(engine, fresh, state, chosen, job.progress, found, state.seen(files))
            job.progress("the report")
            total = write_audit(draft, result, state)
    bad = {kind: int(n) for kind, n in total.items() if kind not in ABOUT_HOSTS}
    job.say(
        {
            "findings": total,
            "open": int(result.open.messages.sum()),
            "messages": result.messages,
            "events": result.events,
            "files": result.files,
            "seconds": round(result.seconds, 1),
            "report": job.report_at(draft),
        },
        _audit_text(total, bad, result, job.report_at(draft)),
    )
    if any(n for kind, n in bad.items() if kind in wanted):
        context.exit(FOUND)


def _audit_text(total: dict[str, int], bad: dict[str, int], result: Any, report: str) -> str:
    from pipeline.jobs.audit.findings import INCOMPLETE

    lines = [f"{n:>10,} {kind.replace('_', ' ')}" for kind, n in total.items() if n]
    undecided = int(result.open[result.open.reason != "on_its_way"].messages.sum())
    if any(bad.values()):
        head = f"{counted(sum(bad.values()), 'finding')} about messages:"
    elif undecided:
        unclear = counted(undecided, "message is", "messages are")
        head = f"nothing wrong was found; {unclear} undecided for lack of logs"
    elif any(total.get(kind) for kind in INCOMPLETE):
        head = "nothing wrong was found, but parts of the logs are missing"
    else:
        head = "nothing was lost, doubled or reordered"
    return "\n".join([head, *lines, f"see {report}"])


_again = click.option(
    "--again", is_flag=True, help="Forget what was read before, and read all files again."
)


@run.command()
@_over_logs
@_again
def latency(job: Job, again: bool) -> None:
    """Show how long messages take from stage to stage, by route, queue and hour.

    The offsets between hosts' clocks are estimated and subtracted.  Continues
    where the last run into the same folder ended.
    """
    from pipeline.jobs.latency import latency as work
    from pipeline.report.latency_page import latency_page

    names = ["by_route", "by_queue", "by_hour", "route_hours", "clocks"]
    _run_on(job, "latency", work, latency_page, names, again=again)


@run.command("dead-letters")
@_over_logs
@_again
def dead_letters(job: Job, again: bool) -> None:
    """Group dead letters: why, where and when they died, which wait, how to requeue them.

    Continues where the last run into the same folder ended.
    """
    from pipeline.jobs.dead_letters import dead_letters as work
    from pipeline.report.dead_letters_page import dead_letters_page

    _run_on(job, "dead-letters", work, dead_letters_page, ["groups", "by_hour"], again=again)


@run.command()
@_over_logs
@_again
@click.option(
    "--quota", type=click.IntRange(min=1), metavar="BYTES",
    help="Forecast the day on which each queue holds this much, from its growth in the log.",
)  # fmt: skip
def traffic(job: Job, again: bool, quota: int | None) -> None:
    """Show rates by host and queue, what waits and for how long, and when a quota fills.

    Continues where the last run into the same folder ended.
    """
    from functools import partial

    from pipeline.jobs.traffic import traffic as work
    from pipeline.report.traffic_page import traffic_page

    names = ["by_hour", "queues"]
    work = partial(work, quota_bytes=quota or 0)
    _run_on(job, "traffic", work, traffic_page, names, again=again)


@run.command()
@apart_from_findings
@_over_logs
@_again
@click.option(
    "--objectives", required=True, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="The objectives, in TOML: docs/jobs.md describes them.",
)  # fmt: skip
@click.pass_context
def slo(context: click.Context, job: Job, again: bool, objectives: Path) -> None:
    """Show how many messages were in time, and how much of each error budget is used.

    Continues where the last run into the same folder ended.  Exit code 1 means
    that an objective is missed; a job that failed ends with 70.
    """
    from functools import partial

    from pipeline.jobs.objectives import WrongObjective, read_objectives
    from pipeline.jobs.slo import slo as work
    from pipeline.report.slo_page import slo_page

    try:
        wanted = read_objectives(objectives)
    except WrongObjective as wrong:
        raise Failure(ExitCode.USAGE, str(wrong), "wrong_usage") from wrong
    work = partial(work, objectives=wanted)
    result = _run_on(job, "slo", work, slo_page, ["objectives", "by_day"], again=again)
    if result is not None:
        found = result["objectives"]
        if not found[found.messages > 0].is_met.all():
            context.exit(FOUND)


@run.command()
@_over_logs
@click.option("--message", required=True, metavar="ID", help="A message id, or a correlation id.")
def trace(job: Job, message: str) -> None:
    """Show the history of one message and of related messages, over all hosts."""
    from functools import partial

    from pipeline.jobs.trace import trace as work
    from pipeline.report.trace_page import trace_page

    if not message.strip():
        raise Failure(ExitCode.USAGE, "the message id is empty", "wrong_usage")
    page = partial(trace_page, message=message)
    tables = _run(job, "trace", partial(work, message=message), page, ["events"])
    if tables is not None and not len(tables["events"]):
        raise Failure(
            ExitCode.NOT_FOUND, f"no event of {message} is in these files", "no_such_message"
        )


run.add_command(archive)
run.add_command(replay)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--hosts", type=click.IntRange(min=2), default=20, show_default=True)
@click.option("--streams", type=click.IntRange(min=1), default=100, show_default=True,
              help="Routes from a host to a queue of another host.")  # fmt: skip
@click.option("--messages", type=click.IntRange(min=1), default=50_000, show_default=True)
@click.option("--days", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--faults", default="everyday", show_default=True, metavar="LIST",
              help="all, none, everyday, or kinds with counts: lost=3,clock=1.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def generate(
    folder: Path, hosts: int, streams: int, messages: int, days: int, faults: str, seed: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Write the event logs of an invented fleet to FOLDER, with faults of every kind.

    The faults are listed in _truth.json there: an audit has to find exactly
    these.  The same seed gives the same fleet.
    """
    require()
    from pipeline.generator import Fleet, parse_faults
    from pipeline.generator import generate as make

    try:
        fleet = Fleet(
            hosts=hosts, streams=streams, messages=messages, days=days, seed=seed,
            faults=parse_faults(faults),
        )  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if folder.exists() and any(folder.iterdir()) and not (folder / "_truth.json").exists():
        raise Failure(
            ExitCode.USAGE,
            f"{folder} holds other files, which would be replaced; name a new folder",
            "wrong_usage",
        )
    progress = Progress()
    truth = make(fleet, folder, progress)
    progress.done()
    kinds: dict[str, int] = {}
    for each in (*truth["findings"], *truth["hosts"]):
        kinds[each["kind"]] = kinds.get(each["kind"], 0) + 1
    text = f"{truth['events']:,} events in {folder}; an audit has to find: " + (
        ", ".join(f"{n} {kind}" for kind, n in kinds.items()) or "nothing"
    )
    if left_out := truth["left_out"]:
        text += "; no place for " + ", ".join(f"{n} {kind}" for kind, n in left_out.items())
        text += ": more --messages, fewer --streams or more --hosts make room"
    if as_json:
        from qmd.cli.output import print_json

        print_json({"events": truth["events"], "findings": kinds})
    else:
        click.echo(text)


def _run_on(
    job: Job,
    name: str,
    work: Callable[..., dict[str, Any]],
    page: Callable[..., str],
    tables: list[str],
    *,
    again: bool,
) -> dict[str, Any] | None:
    """Run a job that continues where its last run ended: on new files, with its memory.

    Return its tables; None for a dry run.
    """
    from pipeline.jobs.audit.state import StateVersionMismatch
    from pipeline.jobs.incremental.memory import Memory
    from pipeline.jobs.readable_files import BROKEN_FILES

    files = job.files()
    with job.writing(name) as draft:
        try:
            memory = Memory.load(draft, again=again)
        except StateVersionMismatch as other:
            raise Failure(ExitCode.USAGE, str(other), "wrong_usage") from other
        fresh = memory.unseen(files)
        if job.dry_run:
            job.say_plan(fresh, len(files) - len(fresh), [*tables, BROKEN_FILES])
            return None
        read: list[Any] = []

        def work_on(spark: Any, whole: list[Any], **more: Any) -> dict[str, Any]:
            read[:] = whole
            return work(spark, whole, memory, **more)

        result = _result(job, draft, work_on, page, fresh, has_earlier_results=not memory.is_empty)
        memory.save(read)
        draft.commit()
    counts = {"files": len(read), "known": len(files) - len(fresh)}
    _say_result(job, result, tables, counts, job.report_at(draft))
    return result


def _run(
    job: Job,
    name: str,
    work: Callable[..., dict[str, Any]],
    page: Callable[..., str],
    tables: list[str],
) -> dict[str, Any] | None:
    """Run a job that computes tables from logs, and write its page; None for a dry run."""
    from pipeline.jobs.readable_files import BROKEN_FILES

    files = job.files()
    if job.dry_run:
        job.say_plan(files, 0, [*tables, BROKEN_FILES])
        return None
    with job.writing(name) as draft:
        result = _result(job, draft, work, page, files)
        draft.commit()
    _say_result(job, result, tables, {"files": len(files)}, job.report_at(draft))
    return result


def _result(
    job: Job,
    draft: Any,
    work: Callable[..., dict[str, Any]],
    page: Callable[..., str],
    files: list[Any],
    *,
    has_earlier_results: bool = False,
) -> dict[str, Any]:
    """Run the job, write its tables and page, and return the tables."""
    from functools import partial

    from pipeline.jobs.readable_files import NoReadableFile, over_readable_files
    from pipeline.report.outcome import write_tables

    with job.session_for(draft.job, files) as spark:
        try:
            result = over_readable_files(
                spark, files, partial(work, spark, progress=job.progress), job.progress,
                has_earlier_results=has_earlier_results,
            )  # fmt: skip
        except NoReadableFile as none:
            raise Failure(ExitCode.NOT_FOUND, str(none), "no_events") from none
        job.progress("writing the report")
        write_tables(draft, result, partial(page, result))
    return result


def _say_result(
    job: Job, result: dict[str, Any], tables: list[str], counts: dict[str, int], report: str
) -> None:
    from pipeline.jobs.readable_files import BROKEN_FILES

    broken = result[BROKEN_FILES]
    rows = {table: len(frame) for table, frame in result.items()}
    text = ", ".join(f"{rows[table]:,} {table.replace('_', ' ')}" for table in tables)
    before = counts.get("known")
    known = f", {counted(before, 'was', 'were')} read before" if before else ""
    lines = [f"{counted(counts['files'], 'file')} read{known}"]
    lines += [f"skipped, damaged: {row.file}: {row.reason}" for row in broken.itertuples()]
    job.say(
        {"rows": rows, "broken_files": broken.file.to_list(), "report": report} | counts,
        "\n".join([text, *lines, f"see {report}"]),
    )
