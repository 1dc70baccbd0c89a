"""`qmd pipeline watch`, a continuous audit, and `alert`, the news of an audit.  docs/watch.md"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pipeline.commands.job import Job, require
from pipeline.commands.seconds import Seconds
from qmd.cli.program import ExitCode, Failure

if TYPE_CHECKING:
    from pipeline.watch.alerts import Alerts
    from pipeline.watch.announced import Announced, News
    from pipeline.watch.sources import LiveLog

F = TypeVar("F", bound=Callable[..., Any])

LIVE = "live"  # folder of copied logs, in that of the results
ANNOUNCED = "announced.json"


def _alert_options(command: F) -> F:
    for option in (
        click.option(
            "--alert-command", default="", metavar="COMMAND",
            help="A program with arguments, which gets each alert as JSON on its standard input."
            "  No shell runs it.",
        ),
        click.option(
            "--alert-url-file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
            help="The file with the address of a webhook, which gets each alert as JSON."
            "  [default: the environment variable QMD_ALERT_URL]",
        ),
        click.option(
            "--fail-on", default="any", show_default=True, metavar="KINDS",
            help="Which findings count: any, none, or kinds such as lost,duplicated.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command()
@click.option(
    "--from", "addresses", multiple=True, metavar="ADDRESS",
    help="A queue manager: the path of its control socket, or tls://host:port."
    "  May be given several times.",
)  # fmt: skip
@click.option(
    "--input", "inputs", multiple=True, metavar="FOLDER",
    help="A folder or store to which `qmd ship` writes.  May be given several times.",
)  # fmt: skip
@click.option("--output", required=True, type=click.Path(path_type=Path, file_okay=False),
              metavar="FOLDER", help="The folder for the results.")  # fmt: skip
@click.option("--token-file", type=click.Path(path_type=Path, dir_okay=False),
              help="The token for addresses over TLS.")  # fmt: skip
@click.option("--ca-file", type=click.Path(path_type=Path, dir_okay=False),
              help="The authority of their certificates.")  # fmt: skip
@click.option("--every", type=Seconds(0.1), default=20.0, show_default=True,
              metavar="SECONDS", help="The time between two rounds.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=0), default=0, show_default=True,
              help="End after this many rounds; 0: at SIGTERM.")  # fmt: skip
@click.option("--metrics", type=click.Path(path_type=Path, dir_okay=False),
              help="A file with figures for Prometheus' textfile collector.")  # fmt: skip
@_alert_options
@click.pass_context
def watch(
    context: click.Context, addresses: tuple[str, ...], inputs: tuple[str, ...], output: Path,
    token_file: Path | None, ca_file: Path | None, every: float, rounds: int,
    metrics: Path | None, fail_on: str, alert_url_file: Path | None, alert_command: str,
) -> None:  # fmt: skip
    """Audit continuously: findings within a minute, each announced once.

    Each round copies the new events of the queue managers, audits them together
    with all earlier ones, and announces findings that are new, and those that a
    later log has explained.  A queue manager that cannot be reached is tried
    again in the next round.  Exit code 1 means that there are findings at the
    end.
    """
    require()
    from pipeline.watch.sources import LiveLog

    if not addresses and not inputs:
        raise click.UsageError("name queue managers with --from, or folders with --input")
    watching = Watching(
        [LiveLog(each, token_file, ca_file) for each in addresses],
        inputs,
        output,
        _kinds_of(fail_on),
        _receivers(alert_url_file, alert_command),
        metrics,
    )
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    while not stopped.is_set():
        begun = time.monotonic()
        watching.round()
        if rounds and watching.rounds >= rounds:
            break
        stopped.wait(max(0.0, every - (time.monotonic() - begun)))
    if watching.counts:
        context.exit(ExitCode.FAILED)


@dataclass
class Watching:
    """The rounds of a continuous audit."""

    logs: list[LiveLog]
    inputs: tuple[str, ...]
    output: Path
    kinds: frozenset[str]
    alerts: Alerts
    metrics: Path | None = None
    rounds: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def round(self) -> None:
        """Copy new events, audit them, and announce the news."""
        from pipeline.watch.announced import PATIENT_RUNS

        self._copy()
        try:
            findings = self._audit()
            self._cleared("audit")
        except Failure as failure:
            if failure.exit_code == ExitCode.USAGE:
                raise
            self._failed("audit", failure.message)
            findings = None
        if findings is not None:
            announced = _announced(self.output)
            self.counts = _counts(findings, self.kinds)
            news = announced.news(findings, self.kinds, patient_runs=PATIENT_RUNS)
            try:
                announce(news, self.alerts, self.counts, self.output)
                announced.take(news)
                self._cleared("alert")
            except Failure as failure:  # the next round tries it again
                self._failed("alert", failure.message)
            announced.save()
        self.rounds += 1
        if self.metrics is not None:
            _write_metrics(self.metrics, self.counts, self.failures, self.rounds)

    def _copy(self) -> None:
        from pipeline.watch.sources import SourceFailed

        folder = self.output / LIVE
        folder.mkdir(parents=True, exist_ok=True)
        for log in self.logs:
            try:
                log.copy(folder)
                self._cleared(log.address)
            except SourceFailed as failed:
                self._failed(log.address, str(failed))

    def _audit(self) -> list[dict[str, Any]] | None:
        """Audit the files that are new; return all findings, or None if there is nothing new."""
        from pipeline.engines.local import LocalEngine
        from pipeline.jobs.audit import presence
        from pipeline.jobs.audit.findings import AuditSettings
        from pipeline.jobs.audit.job import audit as run_audit
        from pipeline.jobs.audit.state import State, StateVersionMismatch
        from pipeline.report.outcome import write_audit

        folders = [*self.inputs, *([str(self.output / LIVE)] if self.logs else [])]
        job = Job(tuple(folders), str(self.output), "", (), False, False, "embedded")
        try:
            files = job.files()
        except Failure as failure:
            if failure.exit_code == ExitCode.NOT_FOUND:  # nothing was sent yet
                return None
            raise
        with job.writing("audit") as draft:
            try:
                state = State.load(draft, again=False)
            except StateVersionMismatch as other:
                raise Failure(ExitCode.USAGE, str(other), "wrong_usage") from other
            fresh = state.unseen(files)
            if not fresh and draft.before is not None:
                draft.discard()
                return None if self.rounds else read_results(self.output)
            with LocalEngine() as engine:
                chosen = AuditSettings(timelines=5)
                found = presence.find(job.inputs)
                result = run_audit(engine, fresh, state, chosen, inventories=found)
                write_audit(draft, result, state)
        return read_results(self.output)

    def _failed(self, subject: str, text: str) -> None:
        """Print a failure when it begins or changes."""
        if self.failures.get(subject) != text:
            click.echo(f"{_now()} not done: {text}", err=True)
        self.failures[subject] = text

    def _cleared(self, subject: str) -> None:
        if self.failures.pop(subject, None) is not None:
            click.echo(f"{_now()} well again: {subject}", err=True)


@click.command()
@click.option("--output", required=True, type=click.Path(path_type=Path, file_okay=False),
              metavar="FOLDER", help="The folder with the results of the audit.")  # fmt: skip
@click.option("--status", type=int, default=0, show_default=True,
              help="The exit code of the audit that has just ended.")  # fmt: skip
@_alert_options
@click.pass_context
def alert(
    context: click.Context, output: Path, status: int, fail_on: str,
    alert_url_file: Path | None, alert_command: str,
) -> None:  # fmt: skip
    """Announce the findings of the last audit that were not announced before.

    For timers and cron, after `qmd pipeline run audit`: give it that command's
    exit code.  An audit that failed is announced each time.  The exit code is
    that of the audit; 70 if an alert was not taken, and the next call tries it
    again.
    """
    require()
    from pipeline.watch.alerts import AlertFailed, failure_of

    receivers = _receivers(alert_url_file, alert_command)
    if status not in (0, 1):
        try:
            receivers.send(failure_of(f"exit code {status}", status))
        except AlertFailed as failed:
            raise Failure(ExitCode.NOT_DONE, str(failed), "alert_not_taken") from failed
        click.echo(f"the audit failed with exit code {status}")
        context.exit(status)
    findings = read_results(output)
    kinds = _kinds_of(fail_on)
    announced = _announced(output)
    news = announced.news(findings, kinds, patient_runs=1)
    announce(news, receivers, _counts(findings, kinds), output)
    announced.take(news)
    announced.save()
    if not news:
        click.echo("no news")
    context.exit(status)


def announce(news: News, alerts: Alerts, counts: Mapping[str, int], output: Path) -> None:
    """Print the news and give them to the receivers.  Raises Failure if one does not take them."""
    from pipeline.watch.alerts import AlertFailed, alert_of
    from pipeline.watch.announced import line_of

    if not news:
        return
    for word, found in (("found", news.new), ("withdrawn", news.withdrawn)):
        for one in found:
            click.echo(f"{_now()} {word}: {line_of(one)}")
    try:
        alerts.send(alert_of(news, counts, str(output / "report.html")))
    except AlertFailed as failed:
        raise Failure(ExitCode.NOT_DONE, str(failed), "alert_not_taken") from failed


def read_results(output: Path) -> list[dict[str, Any]]:
    """Return the findings of the last audit at a place.  Raises Failure if there is none."""
    from pyarrow import parquet

    from pipeline.results.runs import Results, WrongResults
    from pipeline.watch.announced import read_findings

    try:
        results = Results(output)
        newest = results.latest()
    except WrongResults as error:
        raise Failure(ExitCode.USAGE, str(error), "wrong_usage") from error
    if newest is None or "findings.parquet" not in newest.files:
        raise Failure(
            ExitCode.NOT_FOUND,
            f"{output} has no results of an audit; run qmd pipeline run audit",
            "no_events",
        )
    with results.place.open(newest.files["findings.parquet"]) as file:
        return read_findings(parquet.read_table(file))


def _announced(output: Path) -> Announced:
    from pipeline.watch.announced import Announced

    try:
        return Announced(output / ANNOUNCED)
    except (ValueError, OSError) as error:
        raise Failure(ExitCode.USAGE, str(error), "wrong_usage") from error


def _receivers(url_file: Path | None, command: str) -> Alerts:
    from pipeline.watch.alerts import AlertFailed, receivers

    try:
        return receivers(url_file, command)
    except AlertFailed as failed:
        raise Failure(ExitCode.USAGE, str(failed), "wrong_usage") from failed


def _kinds_of(text: str) -> frozenset[str]:
    """Return the kinds that count; `any` and `none` as in `qmd pipeline run audit`."""
    from pipeline.jobs.audit.findings import KINDS

    if text == "any":
        return frozenset(KINDS)
    chosen = frozenset() if text == "none" else frozenset(part.strip() for part in text.split(","))
    unknown = sorted(chosen - KINDS.keys())
    if unknown:
        raise click.BadParameter(
            f"{unknown[0]!r} is no kind of finding; there are {', '.join(KINDS)}",
            param_hint="--fail-on",
        )
    return chosen


def _counts(findings: list[dict[str, Any]], kinds: frozenset[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in findings:
        if one["kind"] in kinds:
            counts[one["kind"]] = counts.get(one["kind"], 0) + 1
    return counts


def _write_metrics(
    path: Path, counts: Mapping[str, int], failures: Mapping[str, str], rounds: int
) -> None:
    """Write the figures of the last round; readers see the file complete or not at all."""
    from pipeline.jobs.audit.findings import KINDS

    lines = ["# TYPE qmd_watch_findings gauge"]
    lines += [f'qmd_watch_findings{{kind="{kind}"}} {counts.get(kind, 0)}' for kind in KINDS]
    lines += ["# TYPE qmd_watch_failing gauge"]
    lines += [f'qmd_watch_failing{{subject="{_label(each)}"}} 1' for each in sorted(failures)]
    lines += ["# TYPE qmd_watch_rounds_total counter", f"qmd_watch_rounds_total {rounds}"]
    lines += [
        "# TYPE qmd_watch_round_timestamp_seconds gauge",
        f"qmd_watch_round_timestamp_seconds {time.time():.0f}",
    ]
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as part:
        part.write("".join(f"{line}\n" for line in lines))
    os.chmod(part.name, 0o644)  # the collector runs as another user
    os.replace(part.name, path)


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
