"""Checks that ask the daemon: its version, its quotas, its sequences, its waiting messages."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from qmd.cli.host.doctor.finding import Finding, fault, note, ok, warning
from qmd.cli.output import counted
from qmd.cli.status import vanished
from qmd.client import QueueManager
from qmd.client.errors import ClientError
from qmd.config.effective import differences, texts
from qmd.config.file import variable_of
from qmd.config.settings import Settings
from qmd.console.speed import SpeedMeter

CLOCK_APART_S = 60.0
UNREAD_SHOWN = 3


async def check_daemon(qm: QueueManager, settings: Settings) -> list[Finding]:
    """Return the findings about a connected daemon; `settings` are those of the file."""
    facts = await qm.status()
    found: list[Finding] = []
    if facts.get("brief"):
        return [
            note(
                "daemon",
                "This user sees only a part of the status.",
                "Run this command as root or as an administrator ([access]).",
            )
        ]
    found += _version(facts)
    found += _clock(facts)
    found += _room(facts)
    found += _conflicts(facts)
    found += await _settings(qm, settings)
    found += await _speed(qm)
    try:
        found += _unread(await qm.list_queues())
        found += _outgoing(await qm.list_outgoing())
    except ClientError as error:
        found.append(note("outgoing", f"Queues cannot be listed: {error}."))
    return found


def _version(facts: dict[str, Any]) -> Iterator[Finding]:
    installed = version("qmd-msmq")
    if facts["release"] != installed:
        yield warning(
            "version",
            f"The daemon is version {facts['release']}, and {installed} is installed.",
            "Restart the daemon: systemctl restart qmd",
        )
    else:
        yield ok("version", f"The daemon is version {installed}.")


def _clock(facts: dict[str, Any]) -> Iterator[Finding]:
    apart_s = facts["clock_s"] - time.time()
    if abs(apart_s) > CLOCK_APART_S:
        way = "ahead" if apart_s > 0 else "behind"
        yield note(
            "clock",
            f"The daemon's own clock is {abs(apart_s):.0f} s {way}: the clock of the computer was"
            " set while messages existed. Their lifetimes are right.",
        )


async def _settings(qm: QueueManager, settings: Settings) -> list[Finding]:
    """Compare the settings in use with those of the file."""
    try:
        running = {key: str(value) for key, value in (await qm.settings()).items()}
    except ClientError:  # the right to see them is missing
        return []
    keys: dict[str, list[str]] = {}
    found = []
    for key, needs in differences(running, texts(settings)):
        variable = variable_of(*key.split("."))
        if variable not in os.environ:
            keys.setdefault(needs, []).append(key)
            continue
        found.append(
            warning(
                "configuration",
                f"The variable {variable} of this environment sets {key}, and the daemon runs with"
                " another value.",
                "Unset the variable, or set it for the daemon, too (systemctl edit qmd).",
            )
        )
    remedies = {"reload": "qmd config reload", "restart": "systemctl restart qmd"}
    return found + [
        warning(
            "configuration",
            f"The daemon does not use {', '.join(changed)} as the file has it now: it needs a"
            f" {needs}.",
            f"{remedies[needs]}; `qmd config diff` shows the values. If the file was not changed,"
            " the daemon has another file or environment: look at its unit (systemctl cat qmd).",
        )
        for needs, changed in sorted(keys.items())
    ]


async def _speed(qm: QueueManager) -> list[Finding]:
    """Return why the daemon is slow, by the means of the time since its start."""
    began = time.monotonic()
    await qm.status()
    answer_s = time.monotonic() - began
    speed = await SpeedMeter().measure(qm)
    reasons = speed._replace(backlog_s=None).reasons(
        answer_s
    )  # backlogs have findings of their own
    return [
        warning("speed", reason, "`qmd status`, and the page of the host in `qmd console`.")
        for reason in reasons
    ]


def _room(facts: dict[str, Any]) -> Iterator[Finding]:
    if facts["disk_full"]:
        yield fault(
            "disk",
            "The daemon refuses new messages, because the disk is full.",
            "Free space, or receive messages.",
        )
    if facts["commits_wait"]:
        yield fault(
            "disk", f"Commits wait: {facts['commits_wait']}.", "Remove that cause; nothing is lost."
        )
    if facts.get("vanished_messages"):
        yield fault(
            "database",
            f"{vanished(facts)}.",
            "Only the daemon may write to its database. Find the program that did, and send the"
            " messages again, or restore a backup.",
        )
    for failing in facts["housekeeping_failing"]:
        yield warning(
            "maintenance",
            f"Maintenance fails ({failing['act']}): {failing['reason']}.",
            "Remove the cause; it is retried.",
        )
    for each in facts["quota_warnings"]:
        level = fault if each["used_percent"] >= 100 else warning
        yield level(
            "quota",
            f"{each['what']} has reached {each['used_percent']} % of its quota.",
            "Receive or purge messages, or raise the quota: `qmd queue set`, or [quotas].",
        )


def _conflicts(facts: dict[str, Any]) -> Iterator[Finding]:
    for conflict in facts["two_of_one_identity"]:
        yield fault("identity", f"{conflict['reason']}.", conflict["remedy"])
    for each in facts["sequences_in_doubt"]:
        yield fault("sequence", f"{each['destination']}: {each['reason']}", each["remedy"])
    if problem := facts["directory"].get("problem"):
        yield fault("directory", f"The directory: {problem}.", "See `qmd directory status`.")
    for text in facts.get("tls", {}).get("problems", ()):
        yield fault("certificate", f"TLS: {text}.", "See `qmd tls show`.")
    if facts["dead_letters"]:
        yield note(
            "dead letters",
            f"This host keeps {counted(facts['dead_letters'], 'dead letter')}.",
            "`qmd dead-letter list` groups them by reason.",
        )


def _unread(rows: list[dict[str, Any]]) -> Iterator[Finding]:
    """Note the fullest queues with messages for which no program waits."""
    unread = [row for row in rows if row["messages"] and not row["readers_waiting"]]
    for row in sorted(unread, key=lambda row: -row["messages"])[:UNREAD_SHOWN]:
        yield note(
            "queue",
            f"{row['name']} has {counted(row['messages'], 'message')}, and no program waits for"
            " messages there at this moment.",
            f"Look whether its application runs; `qmd peek '{row['name']}'` shows the oldest.",
        )


def _outgoing(rows: list[dict[str, Any]]) -> Iterator[Finding]:
    waiting = [row for row in rows if row["messages"] and not row["in_doubt"]]
    for row in waiting:
        if row["state"] == "paused":
            yield warning(
                "outgoing",
                f"{row['messages']} messages wait for {row['destination']}, which is paused.",
                f"qmd outgoing resume '{row['destination']}'",
            )
        elif row["explanation"] and row["state"] not in ("connected", "active"):
            yield warning(
                "outgoing",
                f"{row['messages']} messages wait for {row['destination']}: {row['explanation']}",
                f"qmd doctor {row['address'] or row['destination']}",
            )
    if not waiting:
        yield ok("outgoing", "No messages wait for other computers.")
