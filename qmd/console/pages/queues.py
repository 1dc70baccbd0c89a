"""Pages about queues and their messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from protocol.errors import ProtocolError
from qmd.client import ClientError, Message
from qmd.client.archive import line_of
from qmd.console import bodies, search
from qmd.console.choices import BadForm, lookup_ids
from qmd.console.fleet import Link
from qmd.console.render import address
from qmd.console.visit import Answer, File, NotFound, Visit, host_page, sorted_by

QUEUES_SHOWN_MAX = 500
COLUMNS = ("name", "messages", "bytes", "taken", "readers_waiting", "quota_used_percent")
EXPORT_MESSAGES_MAX = 10_000
EXPORT_BYTES_MAX = 64 * 1024 * 1024
TRACE_S = 4.0
PARTS = ("label", "id", "body")


async def queues(visit: Visit, host: str) -> Answer:
    """Show the queues of a host, sorted and filtered."""
    link = visit.link(host)
    figures = await link.figures()
    wanted, with_system = visit.asked("filter").casefold(), visit.asked("system") == "1"
    key, down = visit.asked("sort", "messages"), visit.asked("order", "down") != "up"
    only_full = visit.asked("full") == "1"
    rows = [
        each
        for each in figures.queues
        if (with_system or not each["system"])
        and (not only_full or each["messages"])
        and (wanted in each["name"].casefold() or wanted in each["label"].casefold())
    ]
    rows = [dict(row) for row in sorted_by(rows, key, COLUMNS, down=down)]
    for row in rows[:QUEUES_SHOWN_MAX]:
        row["history"] = list(link.history.get(row["name"], ()))
    return host_page(
        "queues",
        visit,
        host,
        rows=rows[:QUEUES_SHOWN_MAX],
        count=len(rows),
        filter=visit.asked("filter"),
        system=with_system,
        full=only_full,
        sort=key if key in COLUMNS else COLUMNS[0],
        down=down,
    )


async def queue(visit: Visit, host: str) -> Answer:
    """Show one queue: its properties, and a page of its messages or of a search."""
    link, name = visit.link(host), visit.asked("name")
    if not name:
        raise NotFound("No queue is named.")
    start, text = visit.place("from"), visit.asked("text").strip()
    parts = frozenset(visit.query.get("part", ())) & set(PARTS) or frozenset(("label", "id"))
    where = visit.asked("where").strip()
    problem, following, previous, seen = "", None, None, visit.place("seen")
    messages: list[Message] = []
    facts: dict[str, Any] | None = None
    try:
        facts = await link.shared(f"queue {name}", lambda: link.qm.show_queue(name))
    except ClientError as error:
        problem = str(error)
    try:
        if visit.is_live:
            pass  # the figures are refreshed, and not the messages
        elif text:
            found = await search.search(link.qm, name, text, parts, start)
            messages, following, seen = found.messages, found.following, seen + found.seen
        else:
            last = visit.asked("last") == "1"
            shown = (
                await search.last_page(link.qm, name)
                if last
                else await search.page(link.qm, name, start, where)
            )
            messages, following, previous = shown.messages, shown.following, shown.previous
    except ClientError as error:
        problem = str(error)
    return host_page(
        "queue",
        visit,
        host,
        name=name,
        facts=facts,
        rows=[message_row(each) for each in messages],
        problem=problem,
        text=text,
        parts_chosen=parts,
        next_page=address(
            *("hosts", host, "queue"),
            name=name,
            text=text,
            where=where,
            seen=seen or None,
            **{"from": following},
        )
        + "".join(f"&part={each}" for each in sorted(parts) if text),
        where=where,
        start=start,
        following=following,
        previous=previous,
        seen=seen,
        history=list(link.history.get(facts["name"], ())) if facts else [],
    )


def message_row(message: Message) -> dict[str, Any]:
    """Return the facts of a message for a row; a damaged one has a problem."""
    stored = message.stored
    row: dict[str, Any] = {"lookup_id": stored.lookup_id, "at_ms": stored.arrived_at_ms}
    try:
        row |= {
            "id": message.id,
            "label": message.label,
            "class": message.message_class,
            "bytes": len(message.body),
            "priority": message.priority,
            "reason": stored.reason,
            "problem": "",
        }
    except Exception as error:  # a packet of another queue manager can have any fault
        row |= {"id": "", "label": "", "class": "", "bytes": len(stored.packet), "priority": "",
                "reason": stored.reason, "problem": str(error)}  # fmt: skip
    return row


async def message(visit: Visit, host: str) -> Answer:
    """Show one message: its body, its properties, its `why`, and its history on all hosts."""
    link, name = visit.link(host), visit.asked("queue")
    found: Message | None = None
    problem = ""
    if name:
        try:
            found = await link.qm.look(name, "this", visit.place("id"))
        except ClientError as error:
            problem = str(error)
    wanted = visit.asked("message").strip() or (found.id if found else str(visit.place("id")))
    account, trace, trace_problems = await _history(visit, host, wanted, name)
    if found is None and account is not None:
        found, name = await _in_place(link, account)
    shown = None
    properties: dict[str, Any] = {}
    if found is not None:
        whole = visit.asked("all") == "1"
        try:
            # A body of a megabyte may take a second, for which others would wait.
            shown = await asyncio.to_thread(
                bodies.show, found.body, found.body_type, visit.asked("as"), whole=whole
            )
            properties = _properties(found)
        except Exception as error:  # a packet of another queue manager can have any fault
            problem = f"The message is damaged: {error}"
    return host_page(
        "message",
        visit,
        host,
        name=name,
        wanted=wanted,
        found=found,
        row=message_row(found) if found is not None else None,
        properties=properties,
        shown=shown,
        editable=_editable(found),
        formats=list(bodies.FORMATS.values()),
        account=account,
        trace=trace,
        trace_problems=trace_problems,
        problem=problem,
    )


def _editable(message: Message | None) -> str:
    """Return the body as a text that a form gives back unchanged, or an empty text."""
    try:
        text = message.body.decode() if message is not None else ""
    except (UnicodeDecodeError, ProtocolError):
        return ""
    is_plain = len(text) <= bodies.BYTES_MAX and "\r" not in text and "\0" not in text
    return text if is_plain else ""


async def _in_place(link: Link, account: dict[str, Any]) -> tuple[Message | None, str]:
    """Return a message from the first queue in which it is now, and the queue."""
    for place in account.get("places", ()):
        name, lookup_id = place.get("queue"), place.get("lookup_id")
        if name and lookup_id:
            try:
                found = await link.qm.look(name, "this", lookup_id)
            except ClientError:
                continue
            if found is not None:
                return found, name
    return None, ""


def _properties(message: Message) -> dict[str, Any]:
    """Return the properties that are set, for people."""
    shown = message.to_json()
    left_out = ("body_base64", "extension_base64", "sender_id_base64", "label", "body_type")
    bus = message.bus_headers
    if bus is not None:
        shown["service_bus"] = bus.summary
        shown["service_bus_headers"] = dict(bus.headers)
    return {
        name.replace("_", " "): json.dumps(value) if isinstance(value, dict | list) else value
        for name, value in shown.items()
        if name not in left_out and value not in (None, "", [], {}, False)
    }


async def _history(
    visit: Visit, host: str, wanted: str, queue: str
) -> tuple[dict[str, Any] | None, list[dict[str, Any]], list[tuple[str, str]]]:
    """Return the account of a host, and the events of all hosts in the order of their times."""

    async def one(link: Link) -> dict[str, Any]:
        is_here = link.host.name == host
        async with asyncio.timeout(TRACE_S):
            try:
                return await link.qm.why(
                    wanted, queue=queue if is_here and not visit.asked("message") else "",
                    ask=is_here,
                )  # fmt: skip
            except ClientError:
                if not is_here or not queue:
                    raise
                return await link.qm.why(wanted, ask=True)

    async def careful(link: Link) -> dict[str, Any] | ClientError:
        try:
            return await one(link)
        except TimeoutError:
            return ClientError(f"{link.host.name} did not answer in time")

    found = await visit.fleet.each(visit.identity, careful)
    account = found[host]
    if isinstance(account, ClientError):
        return None, [], [(host, str(account))]
    if "\\" not in wanted and account["message_id"]:
        # Other hosts know the message by its id, not by its place here.
        others = await _history(visit, host, account["message_id"], queue)
        return others if others[0] is not None else (account, account["events"], others[2])
    events: dict[tuple[Any, ...], dict[str, Any]] = {}
    problems = []
    for name, each in found.items():
        if isinstance(each, ClientError):
            problems.append((name, str(each)))
            continue
        for event in [*each["events"], *(e for peer in each["peers"] for e in peer["events"])]:
            key = (event["queue_manager"], event["block"], event["index"], event["kind"])
            events.setdefault(key, event)
    return account, sorted(events.values(), key=lambda event: int(event["at_ms"])), problems


async def body(visit: Visit, host: str) -> Answer:
    """Return the body of a message as a file: the browser saves it, and shows none of it."""
    found = await visit.link(host).qm.look(visit.asked("queue"), "this", visit.place("id"))
    if found is None:
        raise NotFound("The message is not in the queue any more.")
    return File(found.body, "application/octet-stream", f"body-{found.lookup_id}.bin")


async def _exported(
    link: Link, name: str, ids: Sequence[int], start: int
) -> AsyncIterator[Message]:
    """Yield the messages with these lookup ids, one at a time, or those of a page."""
    if not ids:
        for each in await link.qm.peek(name, start, search.PAGE_MESSAGES):
            yield each
        return
    for lookup_id in dict.fromkeys(ids[:EXPORT_MESSAGES_MAX]):
        found = await link.qm.look(name, "this", lookup_id)
        if found is not None:
            yield found


async def export(visit: Visit, host: str) -> Answer:
    """Return messages as lines of JSON, which `qmd import` reads."""
    link, name = visit.link(host), visit.asked("queue")
    status = await link.qm.status()
    try:
        ids = lookup_ids(visit.query)
    except BadForm as error:
        raise NotFound(str(error)) from None
    lines: list[str] = []
    total = 0
    async for each in _exported(link, name, ids, visit.place("from")):
        lines.append(line_of(each, name, status["clock_s"]))
        total += len(lines[-1])
        if total > EXPORT_BYTES_MAX:
            break
    if not lines:
        raise NotFound("There is no message to export.")
    return File("".join(f"{line}\n" for line in lines).encode(), "application/x-ndjson",
                "messages.jsonl")  # fmt: skip
