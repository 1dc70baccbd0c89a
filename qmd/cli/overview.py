"""The overview of a queue manager, for people; `qmd status --json` has every value."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from qmd.cli.output import counted

Facts = Mapping[str, Any]

UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
SIZES = ("bytes", "kB", "MB", "GB", "TB", "PB")
# Counts since the start, in the order of a message's way.
TRAFFIC = ("sent", "received", "transmitted", "resent", "relayed")
REFUSALS = {
    "refused": "refused",
    "duplicates_refused": "duplicates",
    "access_refused": "without the right",
}
HOSTS_MAX = 5


def overview(facts: Facts, problems: list[str]) -> dict[str, Any]:
    """Return the facts of a status in sections, as texts with units.

    A client without the right `see-status` gets the first section only.
    """
    shown = _identity(facts)
    if facts.get("brief"):
        return shown
    return shown | {
        "contents": _contents(facts),
        "since the start": _traffic(facts),
        "memory": {name: _budget(each) for name, each in facts.get("memory", {}).items()},
        "caused by other hosts": _consequences(facts.get("consequences", {})),
        "problems": _numbered(problems) if problems else "none",
    }


def duration(seconds: float) -> str:
    """Return a duration in its two greatest units, such as `2 d 3 h`."""
    left = int(seconds)
    parts: list[str] = []
    for unit, length in UNITS:
        count, left = divmod(left, length)
        if count or (parts and left):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def size(number: int) -> str:
    """Return a size such as `12.3 MB`, in powers of 1000."""
    value = float(number)
    for unit in SIZES:
        if value < 1000 or unit == SIZES[-1]:
            return f"{number} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError


def _identity(facts: Facts) -> dict[str, Any]:
    now = datetime.fromtimestamp(facts["clock_s"], UTC)
    shown = {
        "name": facts["name"],
        "queue manager": facts["queue_manager"],
        "release": facts["release"],
        "uptime": duration(facts["uptime_s"]),
        "clock": f"{now:%Y-%m-%d %H:%M:%SZ}",
        "listen": facts["listen"],
    }
    if tls := facts.get("tls"):
        shown["TLS"] = f"{tls['listen']}, until {tls['expires']}" if tls["enabled"] else "off"
    if directory := facts.get("directory"):
        is_none = directory["kind"] == "none"
        shown["directory"] = "none" if is_none else f"{directory['kind']}, {directory['state']}"
    return shown


def _contents(facts: Facts) -> dict[str, Any]:
    delayed = str(facts["delayed_messages"])
    if facts["delayed_messages"]:
        delayed += f", {size(facts['delayed_bytes'])}, the next one at {facts['delayed_until']}"
    used = f"{size(facts['bytes'])} of {size(facts['quota_bytes'])}"
    return {
        "messages": f"{facts['messages']} in {counted(facts['queues'], 'queue')}",
        "for other hosts": facts["outgoing_messages"],
        "awaiting confirmation": facts["awaiting_messages"],
        "delayed": delayed,
        "dead letters": facts["dead_letters"],
        "size": f"{used}, {facts['quota_used_percent']} %",
        "free on the disk": size(facts["disk_free_bytes"]),
    }


def _traffic(facts: Facts) -> dict[str, Any]:
    shown: dict[str, Any] = {"messages": ", ".join(f"{facts[name]} {name}" for name in TRAFFIC)}
    refused = [f"{facts[name]} {words}" for name, words in REFUSALS.items() if facts[name]]
    if refused:
        shown["refusals"] = ", ".join(refused)
    return shown | {"sessions now": facts["sessions"]}


def _budget(budget: Facts) -> str:
    text = f"{size(budget['bytes'])} of {size(budget['limit_bytes'])}"
    counts = (f"{budget[name]} {name}" for name in ("waiting", "denied") if budget.get(name))
    return ", ".join((text, *counts))


def _consequences(facts: Facts) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if answers := facts.get("acknowledgments"):
        shown["acknowledgments"] = (
            f"{answers['queues']} of {counted(answers['queues_max'], 'queue')},"
            f" {size(answers['bytes'])} of {size(answers['bytes_max'])}"
        )
        shown |= _not_zero("not made", answers["not_made"]) | _hosts("waiting for", answers)
    if letters := facts.get("dead_letters"):
        shown["dead letters"] = (
            f"{letters['dead_letters']}, {size(letters['bytes'])} of {size(letters['bytes_max'])}"
        )
        shown |= _not_zero("not kept", letters["not_kept"]) | _not_zero("ended", letters["ended"])
        shown |= _hosts("refused from", letters)
    return shown | _not_zero("events not listed", facts.get("events_not_listed"))


def _hosts(label: str, facts: Facts) -> dict[str, str]:
    """Return the hosts with the largest shares under a label, or nothing."""
    largest = facts["hosts"][:HOSTS_MAX]
    text = ", ".join(f"{each['host']} {size(each['bytes'])}" for each in largest)
    return {label: text} if text else {}


def _not_zero(label: str, value: Any) -> dict[str, Any]:
    return {label: value} if value else {}


def _numbered(problems: list[str]) -> dict[str, str]:
    return {f"{number}.": text for number, text in enumerate(problems, 1)}
