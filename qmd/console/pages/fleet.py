"""Pages about the whole fleet: hosts and flows, the oldest messages, dead letters, a message id."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any, NamedTuple

from qmd.client import ClientError, Message, NotConnected
from qmd.console.fleet import Figures, Link
from qmd.console.flow_map import draw, flows
from qmd.console.render import address
from qmd.console.search import search, waiting_messages
from qmd.console.visit import Answer, Redirect, Visit, page
from qmd.control_protocol.figures import OLDEST_MAX, OldestMessages

OLDEST_ROWS = 50
FIND_S = 5.0
TEXT_S = 2.0  # for a text on one host
MATCHES = 100  # messages with a text that are shown
DEAD_LETTER_QUEUES = ("DIRECT=OS:.\\SYSTEM$;DEADLETTER", "DIRECT=OS:.\\SYSTEM$;DEADXACT")


async def fleet(visit: Visit) -> Answer:
    """Show the hosts, and the messages that wait between them."""
    found = await visit.fleet.each(visit.identity, Link.figures)
    between = flows(found)
    rows = [_host_row(name, each, visit) for name, each in found.items()]
    return page(
        "fleet",
        visit,
        rows=rows,
        flows=between,
        map=draw(found, between),
        down=sum(row["problem"] != "" for row in rows),
    )


def _host_row(name: str, found: Figures | ClientError, visit: Visit) -> dict[str, Any]:
    if isinstance(found, ClientError):
        return {"name": name, "problem": str(found)}
    status = found.status
    history = visit.fleet.link(name, visit.identity).history
    lines = list(history.values())
    length = max(map(len, lines), default=0)
    total = [sum(line[-at] for line in lines if len(line) >= at) for at in range(length, 0, -1)]
    return {
        "name": name,
        "problem": "",
        "computer": status["name"],
        "release": status["release"],
        "uptime_s": status["uptime_s"],
        "answer_ms": round(found.answer_s * 1000, 1),
        "queues": status.get("queues", len([each for each in found.queues if not each["system"]])),
        "messages": status.get("messages"),
        "dead_letters": status.get("dead_letters"),
        "backlog": sum(each["messages"] for each in found.outgoing),
        "waiting": sum(each["state"] in ("waiting", "paused") for each in found.outgoing),
        "sessions": len(found.sessions),
        "disk_free_bytes": status.get("disk_free_bytes"),
        "speed": found.speed,
        "slow": found.speed.reasons(found.answer_s),
        "warnings": warnings_of(status),
        "history": total,
        "problems": found.problems,
    }


def warnings_of(status: dict[str, Any]) -> list[str]:
    """Return the conditions that an operator should look at, as sentences."""
    found = []
    if status.get("disk_full"):
        found.append("The disk is full.")
    if status.get("commits_wait"):
        found.append(f"Commits wait: {status['commits_wait']}.")
    for each in status.get("quota_warnings", ()):
        found.append(f"Quota: {each}")
    for each in status.get("housekeeping_failing", ()):
        found.append(f"{each['act']} fails: {each['reason']}")
    for each in status.get("two_of_one_identity", ()):
        found.append(f"{each['reason']}. {each['remedy']}")
    for each in status.get("sequences_in_doubt", ()):
        found.append(f"{each['destination']}: {each['reason']}")
    problem = status.get("directory", {}).get("problem")
    if problem:
        found.append(f"Directory: {problem}")
    return found


async def oldest(visit: Visit) -> Answer:
    """Show the oldest messages that wait in queues of the fleet, and for other hosts."""
    found = await visit.fleet.each(
        visit.identity, lambda link: link.shared("oldest", lambda: _oldest_of(link))
    )
    rows: list[dict[str, Any]] = []
    problems = []
    for host, each in found.items():
        if isinstance(each, ClientError):
            problems.append((host, str(each)))
            continue
        rows += [{"host": host, **row} for row in each]
    rows.sort(key=lambda row: row["at_ms"])
    return page("oldest", visit, rows=rows[:OLDEST_ROWS], problems=problems, now_s=time.time())


def _facts(message: Message) -> dict[str, Any]:
    return {
        "lookup_id": message.lookup_id,
        "id": message.id,
        "label": message.label,
        "at_ms": message.stored.arrived_at_ms,
    }


async def _oldest_of(link: Link) -> list[dict[str, Any]]:
    """Return the oldest messages of a host, of each queue and each destination one at most."""
    figures = await link.figures()
    full = [each for each in figures.queues if each["messages"]]
    waiting = [each for each in figures.outgoing if each["messages"]]
    arrived = await _times(link, "queues", [each["name"] for each in full])
    sent = await _times(link, "destinations", [each["destination"] for each in waiting])
    if arrived:
        full.sort(key=lambda each: arrived.get(each["name"], math.inf))
    else:  # without the right to the figures
        full.sort(key=lambda each: -each["messages"])
    names = [each["format_name"] for each in full[:OLDEST_ROWS]]

    async def first(name: str) -> Message | None:
        try:
            return await link.qm.look(name, "first")
        except ClientError:
            return None  # without the right to peek, or deleted meanwhile

    messages = await asyncio.gather(*map(first, names))
    return [
        {"queue": each["name"], "destination": "", **_facts(message)}
        for each, message in zip(full, messages, strict=False)
        if message is not None
    ] + [
        {
            "queue": "",
            "destination": each["destination"],
            "label": each["explanation"],
            "at_ms": sent[each["destination"]],
        }
        for each in waiting
        if each["destination"] in sent
    ]


async def _times(link: Link, kind: str, names: list[str]) -> dict[str, int]:
    """Return when the oldest message of each name came, in ms; {} without the right to it."""
    found: dict[str, int] = {}
    for at in range(0, len(names), OLDEST_MAX):
        part = names[at : at + OLDEST_MAX]
        try:
            asked = (part, []) if kind == "queues" else ([], part)
            answer = await link.qm.caller.ask(OldestMessages, *asked)
        except NotConnected:
            raise
        except ClientError:
            return {}
        times = zip(part, answer[kind], strict=True)
        found |= {name: at_ms for name, at_ms in times if at_ms is not None}
    return found


async def find(visit: Visit) -> Answer:
    """Find messages on all hosts: by an id, or by a part of a label or of an id.

    An id that a host knows leads to the page of its message.
    """
    wanted = visit.asked("message").strip()
    if not wanted:
        return page("find", visit, wanted="", rows=[], matches=[], left_out=[], waiting=[])
    found = await visit.fleet.each(visit.identity, lambda link: _known(link, wanted))
    rows = []
    for host, account in found.items():
        if isinstance(account, ClientError):
            if account.code == "not_a_message_id":
                continue  # a text
            rows.append({"host": host, "state": "", "problem": str(account)})
        else:
            rows.append({"host": host, "state": account["state"], "problem": ""})
    known = [row["host"] for row in rows if row["state"] not in ("", "unknown", "not_told")]
    if known and visit.asked("stay") != "1":
        return Redirect(address("hosts", known[0], "message", message=wanted))
    texts = await visit.fleet.each(visit.identity, lambda link: _containing(link, wanted))
    answers = {host: each for host, each in texts.items() if not isinstance(each, ClientError)}
    matches = [{"host": host, **row} for host, each in answers.items() for row in each.matches]
    waiting = [{"host": host, **row} for host, each in answers.items() for row in each.waiting]
    return page(
        "find",
        visit,
        wanted=wanted,
        rows=rows,
        matches=sorted(matches, key=lambda row: -row["at_ms"])[:MATCHES],
        waiting=sorted(waiting, key=lambda row: -row["sent_at_ms"])[:MATCHES],
        left_out=[(host, *each) for host, found in answers.items() for each in found.left_out],
    )


class _Containing(NamedTuple):
    """The messages of one host that contain a text."""

    matches: list[dict[str, Any]]
    waiting: list[dict[str, Any]]  # messages for other hosts
    left_out: list[tuple[str, str]]  # pages of queues that were not searched to the end, and names


async def _containing(link: Link, text: str) -> _Containing:
    """Search the labels and ids in all queues of a host for a limited time.  Raises ClientError.

    Dead letters and messages for other hosts come first: a message that did not arrive is often
    there.  Then short queues.
    """
    async with asyncio.timeout(FIND_S):  # not the shared figures: a message may be a second old
        queues = await link.qm.list_queues(system=True)
    queues = [each for each in queues if each["messages"]]
    queues.sort(key=lambda each: (not each["system"], each["messages"]))
    matches: list[dict[str, Any]] = []
    until = time.monotonic() + TEXT_S
    waiting, left_out = await _waiting(link, text, time.monotonic() + TEXT_S / 2)
    for each in queues:
        if len(matches) >= MATCHES or time.monotonic() > until:
            left_out.append(("queue", each["name"]))
            continue
        try:
            found = await search(link.qm, each["format_name"], text, frozenset(("label", "id")))
        except NotConnected:
            raise
        except ClientError:
            continue  # without the right to peek, or deleted meanwhile
        matches += [
            {"queue": each["name"], "reason": message.reason or "", **_facts(message)}
            for message in found.messages
        ]
        if found.following is not None:
            left_out.append(("queue", each["name"]))
    return _Containing(matches, waiting, left_out)


async def _waiting(
    link: Link, text: str, until: float
) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Search the messages that wait for other hosts until a time of the monotonic clock.

    Returns them, and the outgoing queues that were not searched to the end, short ones first.
    """
    try:
        queues = await link.qm.list_outgoing()
    except NotConnected:
        raise
    except ClientError:
        return [], []  # without the right to see the state of the host
    found: list[dict[str, Any]] = []
    left_out: list[tuple[str, str]] = []
    for each in sorted(queues, key=lambda queue: int(queue["messages"])):
        if not each["messages"]:
            continue
        try:
            part = await waiting_messages(link.qm, each["destination"], text, MATCHES, until=until)
        except NotConnected:
            raise
        except ClientError:
            continue  # without the right to peek, or gone meanwhile
        found += [{"destination": each["destination"], **row} for row in part.rows]
        if part.following is not None:
            left_out.append(("destination", each["destination"]))
    return found, left_out


async def _known(link: Link, wanted: str) -> dict[str, Any]:
    async with asyncio.timeout(FIND_S):
        return await link.qm.why(wanted, ask=False)


async def dead_letters(visit: Visit) -> Answer:
    """Show the dead letters of all hosts by their reasons."""
    found = await visit.fleet.each(visit.identity, dead_letters_of)
    groups: list[dict[str, Any]] = []
    problems = []
    for host, each in found.items():
        if isinstance(each, ClientError):
            problems.append((host, str(each)))
        else:
            groups += [{"host": host, **group} for group in each]
    groups.sort(key=lambda group: -group["messages"])
    return page("dead_letters", visit, groups=groups, problems=problems, now_s=time.time())


async def dead_letters_of(link: Link) -> list[dict[str, Any]]:
    """Return the groups of dead letters of a host.  Raises ClientError."""
    found: list[dict[str, Any]] = await link.shared("dead letters", lambda: _groups(link))
    return found


async def _groups(link: Link) -> list[dict[str, Any]]:
    found = await asyncio.gather(*(link.qm.dead_letters(each) for each in DEAD_LETTER_QUEUES))
    return [
        {**group, "queue": queue}
        for queue, groups in zip(DEAD_LETTER_QUEUES, found, strict=True)
        for group in groups
    ]
