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

from pipeline.commands.exit_codes import FOUND, apart_from_findings, kinds_of
from pipeline.commands.job import Job, require
from pipeline.commands.seconds import Seconds
from qmd.cli.program import ExitCode, Failure

if TYPE_CHECKING:
    from pipeline.jobs.audit.findings import AuditResult
    from pipeline.results.places import Place
    from pipeline.results.runs import Commit
    from pipeline.watch.alerts import Alerts
    from pipeline.watch.announced import Announced, News
    from pipeline.watch.sources import LiveLog

F = TypeVar("F", bound=Callable[..., Any])

LIVE = "live"  # folder of copied logs, in that of the results
SIGNALLED = 128  # and the number of the signal, as in shells


class Status(click.ParamType[int]):
    """An exit code, or the name of a signal, as systemd gives them in EXIT_STATUS."""

    name = "status"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if text.isdecimal() and int(text) < 256:
            return int(text)
        if f"SIG{text}" in signal.Signals.__members__:
            return SIGNALLED + signal.Signals[f"SIG{text}"]
        self.fail(f"{text!r} is no exit code and no signal such as KILL", param, ctx)


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


def _tls_options(command: F) -> F:
    for name, help_ in (
        ("--key-file", "The key of that certificate."),
        ("--certificate-file", "The certificate of this client, where they demand one."),
        ("--ca-file", "The authority of their certificates."),
        ("--token-file", "The token for addresses over TLS."),
    ):
        kind = click.Path(path_type=Path, dir_okay=False)
        command = click.option(name, type=kind, metavar="FILE", help=help_)(command)
    return command


@click.command()
@apart_from_findings
@click.option(
    "--from", "addresses", multiple=True, metavar="ADDRESS",
    help="A queue manager: the path of its control socket, or tls://host:port."
    "  May be given several times.",
)  # fmt: skip
@click.option(
    "--input", "inputs", multiple=True, metavar="FOLDER",
    help="A folder or store to which `qmd ship` writes.  May be given several times.",
)  # fmt: skip
@click.option("--output", required=True, metavar="FOLDER",
              help="The folder for the results, or without --from a URL.")  # fmt: skip
@_tls_options
@click.option("--every", type=Seconds(0.1), default=20.0, show_default=True,
              metavar="SECONDS", help="The time between two rounds.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=0), default=0, show_default=True,
              help="End after this many rounds; 0: at SIGTERM.")  # fmt: skip
@click.option("--new-epoch", is_flag=True,
              help="Once for each queue manager: follow the log of a restored one, which is not"
              " the log that was copied.  Make sure that no copy of it runs.")  # fmt: skip
@click.option("--metrics", type=click.Path(path_type=Path, dir_okay=False),
              help="A file with figures for Prometheus' textfile collector.")  # fmt: skip
@_alert_options
@click.pass_context
def watch(
    context: click.Context, addresses: tuple[str, ...], inputs: tuple[str, ...], output: str,
    token_file: Path | None, ca_file: Path | None, certificate_file: Path | None,
    key_file: Path | None, every: float, rounds: int, new_epoch: bool, metrics: Path | None,
    fail_on: str, alert_url_file: Path | None, alert_command: str,
) -> None:  # fmt: skip
    """Audit continuously: findings within a minute, each announced once.

    Each round copies the new events of the queue managers, audits them together
    with all earlier ones, and announces findings that are new, and those that a
    later log has explained.  A queue manager that cannot be reached is tried
    again in the next round.  Exit code 1 means that there are findings at the
    end; 70, that the command failed.
    """
    require()
    from pipeline.watch.sources import LiveLog

    if not addresses and not inputs:
        raise click.UsageError("name queue managers with --from, or folders with --input")
    if bool(certificate_file) != bool(key_file):
        raise click.UsageError("--certificate-file and --key-file belong together; give both")
    place = _place(output)
    if addresses and place.folder is None:
        raise click.UsageError(
            "--from copies logs to a folder of this host; name one with --output, or ship to a"
            " store and follow it with --input"
        )
    files = token_file, ca_file, certificate_file, key_file
    watching = Watching(
        [LiveLog(each, *files) for each in addresses],
        inputs,
        place,
        _kinds(fail_on),
        _receivers(alert_url_file, alert_command),
        metrics,
        new_epoch_of=set(addresses if new_epoch else ()),
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
        context.exit(FOUND)
    if "audit" in watching.failures:
        context.exit(ExitCode.NOT_DONE)


@dataclass
class Watching:
    """The rounds of a continuous audit."""

    logs: list[LiveLog]
    inputs: tuple[str, ...]
    place: Place
    kinds: frozenset[str]
    alerts: Alerts
    metrics: Path | None = None
    rounds: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    new_epoch_of: set[str] = field(default_factory=set)  # addresses
    inventories: Any = None  # a frame of `presence.read`: those of the last audit
    is_announced: bool = False  # whether the receivers have the last findings

    def round(self) -> None:
        """Copy new events, audit them, and announce the news."""
        self._copy()
        try:
            findings = self._audit()
            self._cleared("audit")
        except Failure as failure:
            if failure.exit_code == ExitCode.USAGE:
                raise
            self._failed("audit", failure.message)
            findings = None
        except OSError as error:  # of the logs or the results; a later round may succeed
            self._failed("audit", _said(self.place.where, error))
            findings = None
        if findings is not None:
            self._announce(findings)
        self.rounds += 1
        if self.metrics is not None:
            try:
                _write_metrics(self.metrics, self.counts, self.failures, self.rounds)
                self._cleared("metrics")
            except OSError as error:
                self._failed("metrics", _said(self.metrics, error))

    def _announce(self, findings: list[dict[str, Any]]) -> None:
        """Announce what is new in the findings of this round."""
        from pipeline.watch.announced import PATIENT_RUNS

        announced = _announced(self.place)
        self.counts = _counts(findings, self.kinds)
        news = announced.news(findings, self.kinds, patient_runs=PATIENT_RUNS)
        try:
            try:
                announce(news, self.alerts, self.counts, self.place)
                announced.take(news)
            finally:
                announced.save()
            self._cleared("alert")
            self.is_announced = not announced.has_pending
        except Failure as failure:  # the next round tries it again
            self._failed("alert", failure.message)
        except OSError as error:  # the next round announces the same once more
            self._failed("alert", _said(self.place.where, error))

    def _copy(self) -> None:
        from pipeline.watch.sources import SourceFailed

        for log in self.logs:
            assert self.place.folder is not None
            folder = self.place.folder / LIVE
            try:
                folder.mkdir(parents=True, exist_ok=True)
                log.copy(folder, new_epoch=log.address in self.new_epoch_of)
                self.new_epoch_of.discard(log.address)
                self._cleared(log.address)
            except (SourceFailed, OSError) as failed:
                self._failed(log.address, str(failed))

    def _audit(self) -> list[dict[str, Any]] | None:
        """Audit what is new; return all findings, or None if there is nothing to announce.

        A new inventory may decide messages without any new event: of a queue manager that is idle.
        """
        from pipeline.engines.local import LocalEngine
        from pipeline.jobs.audit import presence
        from pipeline.jobs.audit.findings import AuditSettings
        from pipeline.jobs.audit.job import audit as run_audit
        from pipeline.jobs.audit.state import State, StateVersionMismatch
        from pipeline.report.outcome import write_audit

        folders = [*self.inputs, *([self.place.address(LIVE)] if self.logs else [])]
        job = Job(tuple(folders), self.place.where, "", (), False, False, "embedded")
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
            fresh, inventories = state.unseen(files), presence.find(job.inputs)
            # Those of an idle queue manager keep their name and have another time.
            present, _ = presence.read(inventories)
            if fresh or draft.before is None or not present.equals(self.inventories):
                chosen = AuditSettings(timelines=5)
                with LocalEngine() as engine:
                    result = run_audit(
                        engine, fresh, state, chosen, inventories=inventories,
                        earlier=state.seen(files),
                    )  # fmt: skip
                    if fresh or self._differs(result, draft.before):
                        write_audit(draft, result, state)
                        self.is_announced = False
                self.inventories = present
            draft.discard()  # unless it is published
        return None if self.is_announced else read_results(self.place)

    def _differs(self, result: AuditResult, before: Commit | None) -> bool:
        """Return whether an audit has found other things than the last one that was published."""
        from pipeline.report.outcome import findings_table
        from pipeline.watch.announced import key_of, read_findings

        if before is None or before.summary.get("open") != int(result.open.messages.sum()):
            return True
        found = {key_of(one) for one in read_findings(findings_table(result))}
        return found != {key_of(one) for one in read_results(self.place)}

    def _failed(self, subject: str, text: str) -> None:
        """Print a failure when it begins or changes."""
        if self.failures.get(subject) != text:
            click.echo(f"{_now()} not done: {text}", err=True)
        self.failures[subject] = text

    def _cleared(self, subject: str) -> None:
        if self.failures.pop(subject, None) is not None:
            click.echo(f"{_now()} well again: {subject}", err=True)


@click.command()
@apart_from_findings
@click.option("--output", required=True, metavar="FOLDER",
              help="The folder, or the URL, with the results of the audit.")  # fmt: skip
@click.option("--status", type=Status(), default=0, show_default=True, metavar="CODE",
              help="The exit code of the audit, or the signal that ended it.")  # fmt: skip
@_alert_options
@click.pass_context
def alert(
    context: click.Context, output: str, status: int, fail_on: str,
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

    receivers, kinds = _receivers(alert_url_file, alert_command), _kinds(fail_on)
    if status not in (0, 1):
        try:
            receivers.send(failure_of(f"exit code {status}", status))
        except AlertFailed as failed:
            raise Failure(ExitCode.NOT_DONE, str(failed), "alert_not_taken") from failed
        click.echo(f"the audit failed with exit code {status}")
        context.exit(status)
    place = _place(output)
    findings = read_results(place)
    announced = _announced(place)
    news = announced.news(findings, kinds, patient_runs=1)
    announce(news, receivers, _counts(findings, kinds), place)
    announced.take(news)
    announced.save()
    if not news:
        click.echo("no news")
    context.exit(status)


def announce(news: News, alerts: Alerts, counts: Mapping[str, int], place: Place) -> None:
    """Print the news and give them to the receivers.  Raises Failure if one does not take them."""
    from pipeline.watch.alerts import AlertFailed, alert_of
    from pipeline.watch.announced import line_of

    if not news:
        return
    for word, found in (("found", news.new), ("withdrawn", news.withdrawn)):
        for one in found:
            click.echo(f"{_now()} {word}: {line_of(one)}")
    try:
        alerts.send(alert_of(news, counts, place.address("report.html")))
    except AlertFailed as failed:
        raise Failure(ExitCode.NOT_DONE, str(failed), "alert_not_taken") from failed


def read_results(place: Place) -> list[dict[str, Any]]:
    """Return the findings of the last audit at a place.  Raises Failure if there is none."""
    from pyarrow import parquet

    from pipeline.results.runs import Results, WrongResults
    from pipeline.watch.announced import read_findings

    try:
        newest = Results(place.where).latest()
    except WrongResults as error:
        raise Failure(ExitCode.USAGE, str(error), "wrong_usage") from error
    if newest is None or "findings.parquet" not in newest.files:
        raise Failure(
            ExitCode.NOT_FOUND,
            f"{place.where} has no results of an audit; run qmd pipeline run audit",
            "no_events",
        )
    with place.open(newest.files["findings.parquet"]) as file:
        return read_findings(parquet.read_table(file))


def _place(where: str) -> Place:
    from pipeline.results.places import Place
    from pipeline.stores import StoreUnknown

    try:
        return Place(where)
    except StoreUnknown as error:
        raise click.BadParameter(str(error), param_hint="--output") from error


def _said(where: object, error: OSError) -> str:
    """Return the same sentence each time: names of unfinished files are random."""
    return f"{where} cannot be written: {error.strerror}" if error.strerror else str(error)


def _announced(place: Place) -> Announced:
    from pipeline.watch.announced import Announced

    try:
        return Announced(place)
    except ValueError as error:
        raise Failure(ExitCode.USAGE, str(error), "wrong_usage") from error


def _kinds(text: str) -> frozenset[str]:
    from pipeline.jobs.audit.findings import KINDS

    return kinds_of(text, KINDS)


def _receivers(url_file: Path | None, command: str) -> Alerts:
    from pipeline.watch.alerts import AlertFailed, receivers

    try:
        return receivers(url_file, command)
    except AlertFailed as failed:
        raise Failure(ExitCode.USAGE, str(failed), "wrong_usage") from failed


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
