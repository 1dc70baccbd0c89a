"""A real message to another queue manager and its acknowledgment: the whole way, there and back.

By default the message goes to a queue that does not exist there: the peer takes it over a session,
acknowledges it to this queue manager, and refuses it, so nothing stays.  With a queue that exists,
the acknowledgment for the application must come back, too, over a connection from there to here.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from protocol.identifiers import guid_text
from qmd.cli.host.doctor.finding import Finding, Level, fault, note, ok, warning
from qmd.cli.host.doctor.peer_checks import PORT, Met, PeerCheck
from qmd.client import Acknowledge, Message, QueueManager
from qmd.client.errors import ClientError

if TYPE_CHECKING:
    from qmd.config.file import Settings

BODY = b"qmd doctor"
QUEUE = "qmd-doctor-probe"  # that does not exist at the peer
CLOCK_APART_S = 60.0
STEP_S = 0.2
# Some packets of every network, but few enough for any quota: one that is lost on the way for its
# size shows with it.
LARGE_BYTES = 16 * 1024
DELIVERED = "delivered"  # the state of a message that a peer has taken
NO_SUCH_QUEUE = "bad_destination_queue"


async def send_probe(
    qm: QueueManager, settings: Settings, check: PeerCheck, queue: str, timeout_s: float
) -> list[Finding]:
    """Send a message to a peer and wait for its acknowledgment; return the findings."""
    destination = _destination(check, queue or QUEUE)
    own = f"qmd-doctor-{os.getpid()}"
    found = await _route(qm, check, destination)
    try:
        await qm.create_queue(own, label="qmd doctor: acknowledgments of a probe")
        try:
            found += await _exchange(
                qm,
                check,
                destination,
                _reached_at(settings, check, own),
                own,
                bool(queue),
                timeout_s,
            )
        finally:
            await qm.delete_queue(own)
        if all(each.level < Level.WARNING for each in found):
            found += await _send_large(qm, check, timeout_s)
    except ClientError as error:
        found.append(fault("probe", f"The probe could not be sent: {error}.", ""))
    return found


def _destination(check: PeerCheck, queue: str) -> str:
    host = f"[{check.address}]" if ":" in check.address else check.address
    port = "" if check.port == PORT else f":{check.port}"
    return f"DIRECT=TCP:{host}{port}\\private$\\{queue}"


async def _send_large(qm: QueueManager, check: PeerCheck, timeout_s: float) -> list[Finding]:
    """Send a message of several packets of the network to the queue that does not exist.

    A route that drops packets for their size, and does not say so, takes the small message only.
    """
    began = time.monotonic()
    sent = await qm.send(
        _destination(check, QUEUE),
        BODY.ljust(LARGE_BYTES),
        label="qmd doctor",
        delivery="recoverable",
        time_to_reach_queue_s=max(1, round(timeout_s)),
    )
    while time.monotonic() < began + timeout_s:
        if (await qm.why(str(sent), ask=False))["state"] == DELIVERED:
            return [ok("size", f"A message of {LARGE_BYTES // 1024} KiB was taken, too.")]
        await asyncio.sleep(STEP_S)
    lacks = list(check.check_room(again=True))
    if check.lacks_room:
        return lacks
    return [
        fault(
            "size",
            f"A short message was taken by {check.host}, and one of {LARGE_BYTES // 1024} KiB was"
            f" not within {timeout_s:g} s: a router on the way drops large packets without saying"
            " so.",
            "Allow ICMP (fragmentation needed; packet too big) on the way, or lower the MTU of the"
            f" interface: ping -M do -s 1472 {check.address}",
        )
    ]


def _reached_at(settings: Settings, check: PeerCheck, queue: str) -> str:
    """Return the name of a queue here by which the peer reaches it."""
    if settings.listen.port == PORT and not settings.listen.reached_at:
        return queue  # by the name of this computer, as for applications
    if settings.listen.reached_at:
        host, port = settings.listen.reached_at[0].host, settings.listen.reached_at[0].port
    else:
        family = socket.AF_INET6 if ":" in check.address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as way:
            way.connect((check.address, check.port))
            host, port = str(way.getsockname()[0]), settings.listen.port
    shown = f"[{host}]" if ":" in host else host
    return f"DIRECT=TCP:{shown}:{port}\\private$\\{queue}"


async def _exchange(
    qm: QueueManager,
    check: PeerCheck,
    destination: str,
    admin_queue: str,
    own: str,
    is_real: bool,
    timeout_s: float,
) -> list[Finding]:
    began = time.monotonic()
    sent = await qm.send(
        destination,
        BODY,
        label="qmd doctor",
        delivery="recoverable",
        time_to_reach_queue_s=max(1, round(timeout_s)),
        admin_queue=admin_queue,
        acknowledge=Acknowledge.FULL_REACH_QUEUE,
    )
    answer: Message | None = None
    facts: dict[str, Any] | None = None
    while answer is None and time.monotonic() < began + timeout_s:
        answer = await qm.receive(own, timeout_s=min(STEP_S, timeout_s))
        facts = await qm.why(str(sent), ask=False)
        if not is_real and facts["state"] == DELIVERED:
            break
    took_ms = 1000 * (time.monotonic() - began)
    if answer is None:
        return [
            *check.check_room(again=True),
            _unanswered(check, facts, took_ms, timeout_s, is_real=is_real),
        ]
    expected = "ack_reach_queue" if is_real else NO_SUCH_QUEUE
    findings = []
    if expected in answer.message_class:
        findings.append(
            ok("probe", f"A message and its acknowledgment took {took_ms:.0f} ms there and back.")
        )
    else:
        findings.append(
            fault(
                "probe",
                f"{check.host} answered the message with {answer.message_class}:"
                f" {answer.message_class_sentence}",
                f"See `qmd explain {answer.message_class_id or answer.message_class}`.",
            )
        )
    return findings + _clocks(check, answer)


def _unanswered(
    check: PeerCheck,
    facts: dict[str, Any] | None,
    took_ms: float,
    timeout_s: float,
    *,
    is_real: bool,
) -> Finding:
    """Return the finding about a probe without an acknowledgment message."""
    state = facts["state"] if facts else ""
    if state == DELIVERED and not is_real:
        return ok(
            "probe",
            f"A message was taken and acknowledged by {check.host} after {took_ms:.0f} ms. Whether"
            " acknowledgments of applications come back is shown with --queue.",
        )
    said = " ".join(facts["sentences"]) if facts else ""
    if state == DELIVERED:
        return fault(
            "probe",
            f"{check.host} has taken a message, and its acknowledgment did not come back within"
            f" {timeout_s:g} s. {said}",
            "The queue does not exist there, or the name of this host leads elsewhere:"
            " check that queue, reached_at in [listen], and the name of this host there (`qmd"
            " doctor` on that computer, with this host).",
        )
    return fault(
        "probe",
        f"A message to {check.host} was not taken within {timeout_s:g} s. {said}",
        "Follow the sentences above; `qmd outgoing show` has the history of the connection.",
    )


def _clocks(check: PeerCheck, answer: Message) -> list[Finding]:
    """Compare the clocks: the acknowledgment has the time at which the peer has sent it."""
    apart_s = answer.sent_at.timestamp() - time.time()
    if abs(apart_s) > CLOCK_APART_S:
        return [
            warning(
                "clock",
                f"The clock of {check.host} is {abs(apart_s):.0f} s"
                f" {'ahead of' if apart_s > 0 else 'behind'} the one here: lifetimes of messages"
                " and certificates go by both.",
                "Set the clock that is wrong, and keep both right with a time service.",
            )
        ]
    return [ok("clock", f"The clocks here and at {check.host} agree.")]


async def _route(qm: QueueManager, check: PeerCheck, destination: str) -> list[Finding]:
    """Return where a message to the peer would go: directly, or over another queue manager."""
    facts = await qm.directory.explain(destination)
    refusal = facts.get("refusal")
    if refusal:
        return [fault("route", f"{refusal['text']}.", str(refusal["remedy"]))]
    for target in (each for element in facts["elements"] for each in element["targets"]):
        if target.get("no_way"):
            return [
                fault("route", f"{target['no_way']}.", "Correct routes in the section [routing].")
            ]
        hops = [hop for hop in target["next_hop"] or () if check.address not in hop]
        if hops:
            return [note("route", f"Messages to {check.host} go over {', '.join(hops)}.")]
    return []


async def check_known(qm: QueueManager, check: PeerCheck, met: Met) -> list[Finding]:
    """Compare the queue manager that answered with the one that is known at that address."""
    guid = guid_text(met.queue_manager)
    others = [
        row
        for row in await qm.list_peers()
        if row["host"] == check.address and row["is_primary"] and row["queue_manager"] != guid
    ]
    own = await qm.status()
    if guid == own["queue_manager"]:
        return [
            fault(
                "identity",
                f"The queue manager at {check.address} port {check.port} is this one, or has its"
                " identity.",
                "If it is another computer, it is a clone: give it a new data folder. If a name"
                " stands for the wrong address, correct it.",
            )
        ]
    if others:
        return [
            note(
                "identity",
                f"Another queue manager, {others[0]['queue_manager']}, was met at {check.address}"
                " before.",
                "If it was replaced, see `qmd peer list` and `qmd outgoing redirect`.",
            )
        ]
    return [ok("identity", f"No other queue manager is known at {check.address}.")]
