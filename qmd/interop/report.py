"""Reports of a probe, as text to read and as JSON to attach."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from protocol.identifiers import guid_text
from qmd.interop.conversation import Seen
from qmd.interop.probe import Probe
from qmd.interop.probe_results import Outcome
from qmd.interop.reading import moment, packet_json


def line_of(outcome: Outcome) -> str:
    """Return a step as a line."""
    return f"{outcome.verdict.value:>8}  {outcome.step} ({outcome.clause}): {outcome.detail}"


def packet_line(session: str, seen: Seen) -> str:
    """Return a packet as a line: its session, time, direction, kind and summary."""
    way = "->" if seen.by_initiator else "<-"
    return f"{session}  {moment(seen.at)[11:-1]}  {way}  {seen.kind}: {seen.summary}"


def violation_lines(seen: Seen) -> Iterator[str]:
    """Yield the violations of a packet as lines."""
    for violation in seen.violations:
        yield f"      {violation}"


def text(probe: Probe, version: str, started_at: float) -> str:
    """Return the report for people: steps, violations, and every packet."""
    target = probe.target
    lines = [
        "Report of qmd interop probe",
        f"  program      qmd {version}",
        f"  time         {moment(started_at)}, {time.time() - started_at:.0f} s",
        f"  peer         {target.host}, port {target.port}, queue manager {_peer(probe)}",
        f"  own GUID     {guid_text(probe.guid)}",
        f"  queues       {target.queue}, {target.transactional_queue}",
        "",
        "Steps",
        *(f"  {line_of(outcome)}" for outcome in probe.outcomes),
        "",
        "Violations in packets of the peer",
    ]
    found = [
        (talk.name, seen)
        for talk in probe.conversations
        for seen in talk.peer_packets
        if seen.violations
    ]
    for name, seen in found:
        lines += [f"  {packet_line(name, seen)}", *violation_lines(seen)]
    lines += ([] if found else ["  none"]) + ["", "Packets"]
    for talk in probe.conversations:
        lines += [f"  {packet_line(talk.name, seen)}" for seen in talk.packets]
    return "\n".join(lines) + "\n"


def as_json(probe: Probe, version: str, started_at: float) -> dict[str, Any]:
    """Return the report for `json.dumps`, with the bytes of every packet."""
    return {
        "program": f"qmd {version}",
        "started": moment(started_at),
        "host": probe.target.host,
        "port": probe.target.port,
        "queue": probe.target.queue,
        "transactional_queue": probe.target.transactional_queue,
        "guid": guid_text(probe.guid),
        "peer_guid": _peer(probe),
        "failures": probe.failures,
        "steps": [each._asdict() | {"verdict": each.verdict.value} for each in probe.outcomes],
        "sessions": [
            {
                "name": talk.name,
                "begun_by_peer": talk.is_accepted,
                "violations": talk.conversation.violations,
                "packets": [packet_json(number, seen, with_bytes=True) for seen in talk.packets],
            }
            for number, talk in enumerate(probe.conversations, 1)
        ],
    }


def _peer(probe: Probe) -> str:
    """Return the GUID that the peer has stated in its first response."""
    return next(filter(None, (talk.peer_guid for talk in probe.conversations)), "unknown")
