"""Pages about one host: overview, outgoing queues, sessions, directory, services, settings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any

from qmd.client import ClientError
from qmd.config.effective import differences, read_effective, texts
from qmd.config.file import ConfigError, load_settings
from qmd.config.settings import SECTIONS, Settings, settings_of
from qmd.console.pages.fleet import dead_letters_of, warnings_of
from qmd.console.roles import Role
from qmd.console.search import SCAN_S, WaitingMessages, waiting_messages
from qmd.console.visit import Answer, Forbidden, Visit, host_page, sorted_by

OUTGOING = ("messages", "destination", "address", "state", "unacknowledged", "awaiting")
EVENTS_SHOWN = 100


class Part:
    """The answer to one request, or why there is none: pages show the others all the same."""

    def __init__(self, rows: Any, problem: str) -> None:
        self.rows = rows
        self.problem = problem


async def _part(answer: Awaitable[Any], empty: Any = None) -> Part:
    try:
        return Part(await answer, "")
    except ClientError as error:
        return Part([] if empty is None else empty, str(error))


async def overview(visit: Visit, host: str) -> Answer:
    """Show the state of a host, and its last events."""
    link = visit.link(host)
    figures = await link.figures()
    events = await _part(
        link.shared("events", lambda: link.qm.events(last=EVENTS_SHOWN)), {"events": []}
    )
    fullest = sorted(figures.queues, key=lambda each: -each["messages"])[:8]
    return host_page(
        "host",
        visit,
        host,
        status=figures.status,
        figures=figures,
        backlog=sum(each["messages"] for each in figures.outgoing),
        warnings=warnings_of(figures.status),
        fullest=[
            {**each, "history": list(link.history.get(each["name"], ()))}
            for each in fullest
            if each["messages"]
        ],
        events=list(reversed(events.rows["events"])),
        events_problem=events.problem,
    )


async def outgoing(visit: Visit, host: str) -> Answer:
    """Show the outgoing queues, and why messages wait in them."""
    link = visit.link(host)
    figures = await link.figures()
    key, down = visit.asked("sort", "messages"), visit.asked("order", "down") != "up"
    rows = [
        {**row, "history": list(link.history.get(row["destination"], ()))}
        for row in sorted_by(figures.outgoing, key, OUTGOING, down=down)
    ]
    return host_page(
        "outgoing",
        visit,
        host,
        rows=rows,
        problems=figures.problems,
        sort=key if key in OUTGOING else OUTGOING[0],
        down=down,
    )


async def destination(visit: Visit, host: str) -> Answer:
    """Show one outgoing queue with its sequence, its attempts and unconfirmed messages."""
    link, name = visit.link(host), visit.asked("name")
    facts = await link.shared(f"destination {name}", lambda: link.qm.show_outgoing(name))
    text, start = visit.asked("text").strip(), visit.place("start")
    waiting, awaiting = Part(WaitingMessages([], None), ""), Part([], "")
    if not visit.is_live:
        waiting = await _part(
            waiting_messages(link.qm, name, text, start=start, until=time.monotonic() + SCAN_S),
            waiting.rows,
        )
        awaiting = await _part(link.qm.list_awaiting(name, limit=100))
    return host_page(
        "destination",
        visit,
        host,
        name=name,
        facts=facts,
        text=text,
        waiting=waiting,
        awaiting=awaiting,
    )


async def dead_letters(visit: Visit, host: str) -> Answer:
    """Show the dead letters of one host by their reasons."""
    groups = sorted(await dead_letters_of(visit.link(host)), key=lambda each: -each["messages"])
    return host_page(
        "dead_letters",
        visit,
        host,
        groups=[{"host": host, **group} for group in groups],
        problems=[],
        now_s=time.time(),
    )


async def sessions(visit: Visit, host: str) -> Answer:
    """Show sessions, sequences, and the known facts about other queue managers."""
    link = visit.link(host)
    current, sequences, peers = await asyncio.gather(
        *(
            _part(link.shared(name, ask))
            for name, ask in (
                ("sessions", link.qm.list_sessions),
                ("sequences", link.qm.list_sequences),
                ("peers", link.qm.list_peers),
            )
        )
    )
    return host_page("sessions", visit, host, sessions=current, sequences=sequences, peers=peers)


async def directory(visit: Visit, host: str) -> Answer:
    """Show the directory: its state, lists, aliases and topics."""
    qm = visit.link(host).qm
    status, lists, aliases, topics = await asyncio.gather(
        _part(qm.directory.status(), {}),
        _part(qm.directory.lists()),
        _part(qm.directory.aliases()),
        _part(qm.topics.list_all()),
    )
    wanted = visit.asked("explain").strip()
    explained = await _part(qm.directory.explain(wanted), {}) if wanted else None
    shown = visit.asked("list").strip()
    members = await _part(qm.directory.show_list(shown), {}) if shown else None
    return host_page(
        "directory",
        visit,
        host,
        status=status,
        lists=lists,
        aliases=aliases,
        topics=topics,
        wanted=wanted,
        explained=explained,
        shown=shown,
        members=members,
    )


async def services(visit: Visit, host: str) -> Answer:
    """Show readers, retry and poison queues, delayed messages, locks and transactions."""
    link = visit.link(host)
    qm = link.qm
    figures = await link.figures()
    readers, delayed, locks, transactions = await asyncio.gather(
        _part(link.shared("readers", qm.pipeline.list_readers)),
        _part(link.shared("delayed", qm.list_delayed), {"messages": [], "next": None}),
        _part(link.shared("locks", qm.list_locks)),
        _part(link.shared("transactions", qm.list_transactions)),
    )
    served = [
        row
        for row in figures.queues
        if not row["system"] and (row["readers_waiting"] or row["taken"] or row["retry"])
    ]
    retrying = [
        {"queue": row["name"], "retry": row["retry"], **part}
        for row in figures.queues
        for part in row["subqueues"]
        if row["retry"] or part["name"].rpartition(";")[2] in ("retry", "poison")
    ]
    return host_page(
        "services",
        visit,
        host,
        served=served,
        retrying=retrying,
        readers=readers,
        delayed=delayed,
        locks=locks,
        transactions=transactions,
    )


async def settings(visit: Visit, host: str) -> Answer:
    """Show the settings of a queue manager; on this computer with their sources."""
    if visit.identity.role < Role.ADMINISTRATOR:
        raise Forbidden("Only administrators see the settings.")
    link = visit.link(host)
    running = await _part(link.shared("settings", link.qm.settings), {})
    is_here = not link.host.where
    rows: list[dict[str, Any]] = []
    problem = running.problem
    try:
        rows = setting_rows(visit.config if is_here else None, running.rows)
    except (ConfigError, OSError) as error:
        problem = str(error)
    return host_page("settings", visit, host, rows=rows, problem=problem, is_here=is_here)


def setting_rows(config: Path | None, running: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each setting, those that are not the default first.

    With a file: its values, their sources, and the value in use if it differs.  Without: the values
    in use.  Raises ConfigError, OSError.
    """
    meanings = {
        f"{section}.{key}": each.meaning
        for section in SECTIONS
        for key, each in settings_of(section).items()
    }
    if config is None:
        defaults = texts(Settings())
        rows = [
            _row(name, str(value), defaults.get(name, ""), "", meanings)
            for name, value in running.items()
        ]
        return sorted(rows, key=lambda row: bool(row["is_default"]))
    needs = dict(differences({key: str(value) for key, value in running.items()},
                             texts(load_settings(config)))) if running else {}  # fmt: skip
    rows = []
    for each in read_effective(config):
        name = f"{each.section}.{each.key}"
        row = _row(name, each.value, each.default, each.source, meanings)
        rows.append(row | {"in_use": str(running.get(name, "")), "needs": needs.get(name, "")})
    return sorted(rows, key=lambda row: (not row["needs"], row["source"] == "default"))


def _row(
    name: str, value: str, default: str, source: str, meanings: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "default": default,
        "source": source,
        "is_default": value == default,
        "in_use": "",
        "needs": "",
        "meaning": meanings.get(name, ""),
    }
