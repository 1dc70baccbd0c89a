"""Actions, jobs, and reports of the pipeline's jobs."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import structlog

from qmd.client import ClientError
from qmd.console.actions import ACTIONS
from qmd.console.choices import BadForm, one
from qmd.console.jobs import Job, Progress, TooManyJobs
from qmd.console.plans import Plan
from qmd.console.render import address, command_line
from qmd.console.roles import Role
from qmd.console.visit import (
    Answer,
    File,
    Forbidden,
    NotFound,
    Page,
    Redirect,
    Visit,
    host_page,
    page,
)

log = structlog.get_logger()

REPORT = "report.html"
REPORT_BYTES_MAX = 64 * 1024 * 1024
# A report has its style and its pictures inside, and needs neither scripts nor the network.
REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


async def act(visit: Visit, host: str, name: str) -> Answer:
    """Show what an action would do, or do it when the form is confirmed."""
    action = ACTIONS.get(name)
    if action is None:
        raise NotFound(f"There is no action {name}.")
    if visit.read_only:
        raise Forbidden(visit.read_only)
    if visit.identity.role < action.role:
        raise Forbidden(
            f"{action.title} needs the role {action.role.word}, and you are"
            f" {visit.identity.role.word}."
        )
    link = visit.link(host)
    back = _own_address(one(visit.form, "back"), host)
    try:
        plan = action.plan(visit.form)
    except BadForm as error:
        return _problem(visit, host, action.title, str(error), back, 400)
    command = command_line([*visit.command(host), *plan.command])
    is_confirmed = one(visit.form, "confirmed") == "1"
    if is_confirmed:
        log.info("console_action", name=visit.identity.name, action=name, host=host,
                 command=command)  # fmt: skip
    try:
        if not is_confirmed:
            forecast = await plan.forecast(link.qm) if plan.forecast else None
            return host_page(
                "confirm",
                visit,
                host,
                action=action,
                plan=plan,
                forecast=forecast,
                command=command,
                back=back,
                total=str(forecast.messages if forecast and forecast.is_complete else 0),
            )
        if plan.is_many:
            return await _start(visit, host, action.title, plan, command)
        await plan.work(link.qm, Progress())
    except ClientError as error:
        return _problem(visit, host, action.title, str(error), back, 409)
    except TooManyJobs:
        text = "Too many jobs run already; wait until one has ended."
        return _problem(visit, host, action.title, text, back, 429)
    link.forget()
    visit.session.notice = f"{action.title}: done. {plan.sentence}"
    return Redirect(back)


async def _start(visit: Visit, host: str, title: str, plan: Plan, command: str) -> Answer:
    text = one(visit.form, "total")
    total = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0
    job = visit.jobs.start(
        visit.identity,
        host,
        f"{title}: {plan.sentence}",
        command,
        total,
        visit.fleet.worker(host, visit.identity),
        plan.work,
        plan.undo,
    )
    return Redirect(address("jobs", str(job.number)))


def _problem(visit: Visit, host: str, title: str, text: str, back: str, status: int) -> Answer:
    return Page("problem", {"title": title, "text": text, "back": back, "host": host}, status)


def _own_address(text: str, host: str) -> str:
    """Return the page to which an action returns: one of this console only."""
    is_own = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_own and text.isascii() else address("hosts", host)


async def jobs(visit: Visit) -> Answer:
    """Show the jobs."""
    return page("jobs", visit, jobs=visit.jobs.of(visit.identity))


async def job(visit: Visit, number: str) -> Answer:
    """Show one job with its progress."""
    return page("job", visit, job=_job(visit, number))


async def stop_job(visit: Visit, number: str) -> Answer:
    """Stop a job after its piece."""
    found = _job(visit, number)
    found.progress.must_stop = True
    return Redirect(address("jobs", number))


async def undo_job(visit: Visit, number: str) -> Answer:
    """Take back the effect of a job."""
    found = _job(visit, number)
    if visit.read_only or visit.identity.role < Role.OPERATOR:
        raise Forbidden(visit.read_only or "Only operators can do this.")
    pieces = found.progress.undoable
    if not found.can_be_undone or found.undo is None or not pieces:
        raise NotFound("This job cannot be undone.")
    undo, found.undo = found.undo, None
    made = visit.jobs.start(
        visit.identity,
        found.host,
        f"Undo of job {found.number}: {found.title}",
        "",
        sum(len(piece.ids) for piece in pieces),
        visit.fleet.worker(found.host, visit.identity),
        undo(pieces),
        None,
    )
    return Redirect(address("jobs", str(made.number)))


def _job(visit: Visit, number: str) -> Job:
    is_number = number.isascii() and number.isdigit() and len(number) < 10
    found = visit.jobs.find(int(number), visit.identity) if is_number else None
    if found is None:
        raise NotFound("There is no such job: jobs end with the console.")
    return found


async def reports(visit: Visit) -> Answer:
    """Show the reports in the configured folder."""
    return page("reports", visit, rows=_reports(visit.reports), folder=visit.reports)


def _reports(folder: Path | None) -> list[dict[str, Any]]:
    if folder is None or not folder.is_dir():
        return []
    found = []
    for each in sorted(folder.iterdir()):
        file = each / REPORT if each.is_dir() else each
        if file.suffix == ".html" and file.is_file():
            found.append({"name": each.name, "at_ms": int(file.stat().st_mtime * 1000)})
    return sorted(found, key=lambda row: -row["at_ms"])


async def report(visit: Visit, name: str) -> Answer:
    """Show one report, apart from the console: without scripts, and as of another origin."""
    if visit.reports is None or name not in {row["name"] for row in _reports(visit.reports)}:
        raise NotFound(f"There is no report {name}.")
    file = visit.reports / name
    content = report_content(visit.reports, file / REPORT if file.is_dir() else file)
    if content is None:
        raise NotFound(f"The report {name} is too large to be shown, or is not in the folder.")
    return File(content, "text/html; charset=utf-8", "", REPORT_POLICY)


def report_content(folder: Path, file: Path) -> bytes | None:
    """Return the content of a report; None: it is too large, or a link out of the folder.

    The writer of the reports may be another user, and cannot read all that the console can.  The
    opened file itself is asked for its place: a link may be exchanged at any moment.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):  # Python opens none
        os.close(descriptor)
        return None
    with open(descriptor, "rb") as stream:
        place = Path(f"/proc/self/fd/{stream.fileno()}").readlink()
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode) or not place.is_relative_to(folder.resolve()):
            return None
        # Its writer may let it grow meanwhile, also by a hole of any size.
        content = stream.read(REPORT_BYTES_MAX + 1)
        return content if len(content) <= REPORT_BYTES_MAX else None
