"""`qmd pipeline run` and `generate`: jobs over event logs, and logs of fleets that never were.

Nothing heavy is imported before a job runs.  docs/jobs.md
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from qmd.cli.program import ExitCode, Failure

F = TypeVar("F", bound=Callable[..., Any])

FOUND = 1  # exit code of an audit that has findings


@click.group()
def run() -> None:
    """Run a job over files that `qmd events export` or `qmd ship` wrote.

    Each writes Parquet tables and a page, report.html, that opens without a
    network.
    """


def _job_options(command: F) -> F:
    """What all jobs take."""
    for option in reversed(
        (
            click.option(
                "--input", "inputs", multiple=True, required=True, metavar="FOLDER",
                help="Where the event logs are: a folder with all that is in it, a file, or a"
                " store's address.  May be given several times.",
            ),
            click.option(
                "--output", type=click.Path(path_type=Path, file_okay=False), required=True,
                help="The folder for the tables and report.html.",
            ),
            click.option("--master", default="local[2]", show_default=True, help="Spark's master."),
            click.option(
                "--conf", "settings", multiple=True, metavar="NAME=VALUE",
                help="A setting of Spark.  May be given several times.",
            ),
            click.option(
                "--dry-run", is_flag=True, help="Only say what would be read and written."
            ),
            click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


@run.command()
@_job_options
@click.option(
    "--full",
    is_flag=True,
    help="Look at each message, also of streams whose numbers agree on both sides.",
)
@click.option(
    "--again", is_flag=True, help="Forget what was audited before, and read all files again."
)
@click.option(
    "--clock-tolerance",
    type=click.FloatRange(min=0.001),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="By how much clocks may differ.",
)
@click.option(
    "--fail-on", default="any", show_default=True, metavar="KINDS",
    help="Which findings make the exit code 1: any, none, or kinds such as lost,duplicated.",
)  # fmt: skip
@click.pass_context
def audit(
    context: click.Context,
    inputs: tuple[str, ...],
    output: Path,
    master: str,
    settings: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    full: bool,
    again: bool,
    clock_tolerance: float,
    fail_on: str,
) -> None:
    """Prove that every message arrived once and in order, or name each that did not.

    Goes on where the last audit into the same folder ended: files that were
    read are not read again, and what was undecided is decided when the missing
    log comes.  Exit code 1: there are findings.
    """
    _require()
    from pipeline.jobs.audit import audit as run_audit
    from pipeline.jobs.findings import ABOUT_HOSTS, KINDS, AuditSettings
    from pipeline.jobs.state import State

    wanted = _kinds(fail_on, [kind for kind in KINDS if kind not in ABOUT_HOSTS])
    files = _files(inputs)
    state = State() if again else _load(output / "state")
    fresh = state.unseen(files)
    if dry_run:
        _say_plan(len(fresh), len(files), fresh, output, ["findings", "open", "streams"], as_json)
        return
    progress = _Progress()
    spark = _spark("qmd audit", master, settings, progress)
    chosen = AuditSettings(full=full, clock_tolerance_ms=int(clock_tolerance * 1000), pictures=5)
    result = run_audit(spark, fresh, state, chosen, progress)
    from pipeline.jobs.outcome import write_audit

    total = write_audit(output, result, state, is_first=again)
    progress.done()
    bad = {kind: int(n) for kind, n in total.items() if kind not in ABOUT_HOSTS}
    _print_result(
        {
            "findings": total,
            "open": int(result.open.messages.sum()),
            "messages": result.messages,
            "events": result.events,
            "files": result.files,
            "seconds": round(result.seconds, 1),
            "report": str(output / "report.html"),
        },
        _audit_text(total, bad, result, output),
        as_json=as_json,
    )
    if any(n for kind, n in bad.items() if kind in wanted):
        context.exit(FOUND)


def _audit_text(total: dict[str, int], bad: dict[str, int], result: Any, output: Path) -> str:
    lines = [f"{n:>10,} {kind.replace('_', ' ')}" for kind, n in total.items() if n]
    undecided = int(result.open[result.open.reason != "on_its_way"].messages.sum())
    if any(bad.values()):
        head = f"{sum(bad.values()):,} findings about messages:"
    elif undecided:
        head = f"nothing wrong was found; {undecided:,} messages are undecided for lack of logs"
    else:
        head = "nothing was lost, doubled or reordered"
    return "\n".join([head, *lines, f"see {output / 'report.html'}"])


@run.command()
@_job_options
def latency(
    inputs: tuple[str, ...], output: Path, master: str, settings: tuple[str, ...], dry_run: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Say how long messages take from stage to stage, by route, queue and hour.

    Clocks of hosts are compared, and their differences taken out.
    """
    _require()
    from pipeline.jobs.latency import latency as job
    from pipeline.report.reports import latency_page

    names = ["by_route", "by_queue", "by_hour", "route_hours", "clocks"]
    _run(job, latency_page, "latency", names, inputs, output, master, settings, dry_run, as_json)


@run.command("dead-letters")
@_job_options
def dead_letters(
    inputs: tuple[str, ...], output: Path, master: str, settings: tuple[str, ...], dry_run: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Group what died: why, where, when; and how each group is sent again."""
    _require()
    from pipeline.jobs.dead_letters import dead_letters as job
    from pipeline.report.reports import dead_letters_page

    names = ["groups", "by_hour"]
    _run(job, dead_letters_page, "dead letters", names, inputs, output, master, settings, dry_run,
         as_json)  # fmt: skip


@run.command()
@_job_options
@click.option(
    "--quota", type=click.IntRange(min=1), metavar="BYTES",
    help="Say on which day each queue holds so much, if it goes on as in the log.",
)  # fmt: skip
def traffic(
    inputs: tuple[str, ...], output: Path, master: str, settings: tuple[str, ...], dry_run: bool,
    as_json: bool, quota: int | None,
) -> None:  # fmt: skip
    """Say how much goes where, what waits and for how long, and when a quota fills."""
    _require()
    from functools import partial

    from pipeline.jobs.traffic import traffic as job
    from pipeline.report.reports import traffic_page

    names = ["by_hour", "queues"]
    sized = partial(job, quota_bytes=quota or 0)
    _run(sized, traffic_page, "traffic", names, inputs, output, master, settings, dry_run, as_json)


@run.command()
@_job_options
@click.option("--message", required=True, metavar="ID", help="A message id, or a correlation id.")
def trace(
    inputs: tuple[str, ...], output: Path, master: str, settings: tuple[str, ...], dry_run: bool,
    as_json: bool, message: str,
) -> None:  # fmt: skip
    """Tell the whole history of one message, and of what belongs to it, over all hosts."""
    _require()
    from functools import partial

    from pipeline.jobs.trace import trace as job
    from pipeline.report.reports import trace_page

    tables = _run(partial(job, message=message), partial(trace_page, message=message), "trace",
                  ["events"], inputs, output, master, settings, dry_run, as_json)  # fmt: skip
    if tables is not None and not len(tables["events"]):
        raise Failure(
            ExitCode.NOT_FOUND, f"no event of {message} is in these files", "no_such_message"
        )


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--hosts", type=click.IntRange(min=2), default=20, show_default=True)
@click.option("--streams", type=click.IntRange(min=1), default=100, show_default=True,
              help="Ways from a host to a queue of another.")  # fmt: skip
@click.option("--messages", type=click.IntRange(min=1), default=50_000, show_default=True)
@click.option("--days", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--faults", default="everyday", show_default=True, metavar="LIST",
              help="all, none, everyday, or kinds and how many: lost=3,clock=1.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def generate(
    folder: Path, hosts: int, streams: int, messages: int, days: int, faults: str, seed: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Write the event logs of a fleet that never was to FOLDER, with faults of every kind.

    What is wrong with it is written to _truth.json there: an audit has to find
    just that.  The same seed makes the same fleet.
    """
    _require(java=False)
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
            f"{folder} holds other files, and would be replaced; name a folder that is not there",
            "wrong_usage",
        )
    progress = _Progress()
    truth = make(fleet, folder, progress)
    progress.done()
    kinds: dict[str, int] = {}
    for each in (*truth["findings"], *truth["hosts"]):
        kinds[each["kind"]] = kinds.get(each["kind"], 0) + 1
    text = f"{truth['events']:,} events in {folder}; an audit has to find: " + (
        ", ".join(f"{n} {kind}" for kind, n in kinds.items()) or "nothing"
    )
    _print_result({"events": truth["events"], "findings": kinds}, text, as_json=as_json)


def _run(
    job: Callable[..., dict[str, Any]], page: Callable[..., str], name: str, tables: list[str],
    inputs: Sequence[str], output: Path, master: str, settings: Sequence[str], dry_run: bool,
    as_json: bool,
) -> dict[str, Any] | None:  # fmt: skip
    files = _files(inputs)
    if dry_run:
        _say_plan(len(files), len(files), files, output, tables, as_json)
        return None
    progress = _Progress()
    spark = _spark(f"qmd {name}", master, settings, progress)
    result = job(spark, files, progress=progress)
    from pipeline.jobs.outcome import write_tables

    write_tables(output, result, page(result))
    progress.done()
    rows = {table: len(frame) for table, frame in result.items()}
    text = ", ".join(f"{n:,} {table.replace('_', ' ')}" for table, n in rows.items())
    _print_result(
        {"rows": rows, "report": str(output / "report.html")},
        f"{text}\nsee {output / 'report.html'}",
        as_json=as_json,
    )
    return result


def _require(*, java: bool = True) -> None:
    """Raises Failure, in one line, where the extra or Java is missing."""
    import importlib.util

    missing = [
        name for name in ("numpy", "pandas", "pyarrow", "pyspark", "matplotlib", "fsspec")
        if importlib.util.find_spec(name) is None
    ]  # fmt: skip
    if missing:
        raise Failure(
            ExitCode.FAILED,
            f"the pipeline needs {', '.join(missing)}; install the extra: pip install 'qmd[spark]'",
            "pipeline_extra_missing",
        )
    if java:
        from pipeline.java import NoJava, require_java

        try:
            require_java()
        except NoJava as none:
            raise Failure(ExitCode.FAILED, str(none), "java_missing") from none


def _files(inputs: Sequence[str]) -> list[Any]:
    from pipeline.events import NoEvents, find_files

    try:
        return find_files(inputs)
    except NoEvents as none:
        raise Failure(ExitCode.NOT_FOUND, str(none), "no_events") from none


def _load(folder: Path) -> Any:
    from pipeline.jobs.state import State

    return State.load(folder)


def _kinds(text: str, known: list[str]) -> set[str]:
    if text in ("any", "none"):
        return set(known) if text == "any" else set()
    words = set(filter(None, text.replace(" ", ",").split(",")))
    if unknown := sorted(words - set(known)):
        raise click.BadParameter(
            f"there is no finding {unknown[0]!r}; there are: {', '.join(known)}",
            param_hint="--fail-on",
        )
    return words


def _spark(name: str, master: str, settings: Sequence[str], progress: Callable[[str], None]) -> Any:
    from pipeline.session import spark_session

    conf = {}
    for each in settings:
        key, equals, value = each.partition("=")
        if not equals:
            raise click.BadParameter(f"{each!r} is not NAME=VALUE", param_hint="--conf")
        conf[key] = value
    progress("starting Spark")
    session = spark_session(name, master=master, conf=conf)
    session.sparkContext.setLogLevel("ERROR")
    return session


class _Progress:
    """What is being done, on one line of the terminal; nothing where there is none."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            line = f"{time.monotonic() - self._begun:5.0f} s  {text}"
            click.echo(f"\r\x1b[K{line[:width]}", err=True, nl=False)

    def done(self) -> None:
        if self._is_terminal:
            click.echo("\r\x1b[K", err=True, nl=False)


def _say_plan(
    fresh: int, all_: int, files: Sequence[Any], output: Path, tables: Sequence[str], as_json: bool
) -> None:
    size = sum(file.size for file in files)
    written = [str(output / name) for name in (*tables, "report.html")]
    _print_result(
        {"files": fresh, "known": all_ - fresh, "bytes": size, "writes": written},
        f"would read {fresh} files ({size / 1e6:,.1f} MB), {all_ - fresh} were read before;"
        f" would write {', '.join(written)}",
        as_json=as_json,
    )


def _print_result(value: dict[str, Any], text: str, *, as_json: bool) -> None:
    from qmd.cli.output import print_json

    if as_json:
        print_json(value)
    else:
        click.echo(text)
