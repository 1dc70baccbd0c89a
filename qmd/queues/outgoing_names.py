"""Names of outgoing queues, and the links that they lead to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocol.identifiers import guid_bytes
from protocol.names.direct_name import PORT
from protocol.names.format_name import (
    DirectName,
    FormatName,
    PrivateName,
    PublicName,
    parse_format_name,
)
from qmd.core.url_links import url_address
from qmd.errors import Refusal
from qmd.message.addresses import QueueAddress, queue_address
from qmd.queues.outgoing_queue import VIA

if TYPE_CHECKING:
    from qmd.queues.way import Way, Ways

URL = ("HTTP", "HTTPS")  # transports of names that the door for SRMP reaches
FOR_OTHERS = " for others"  # ends the name of a queue for relayed messages


def parse_queue_name(destination: str) -> tuple[FormatName, bytes | None, bool]:
    """Return the parts of an outgoing queue's name, such as `DIRECT=TCP:10.0.0.7\\x via GUID`.

    They are the format name of the destination, the GUID of the queue manager over which it is
    reached (None: by the name itself), and whether it is a queue for relayed messages.
    """
    named, for_others, _ = destination.partition(FOR_OTHERS)
    text, _, via = named.partition(VIA)
    return parse_format_name(text), guid_bytes(via) if via else None, bool(for_others)


def link_of(
    ways: Ways,
    name: FormatName,
    via: bytes | None,
    machine: bytes | None = None,
    *,
    at: tuple[str, int] | None = None,
) -> Way:
    """Return the link to a destination.

    `via` is the queue manager over which it is reached, and `at` the address to dial for that, if
    it is not the one in the name; `machine` is the queue manager of a public queue. Raises Refusal
    if nothing leads to the name.
    """
    if via is not None and isinstance(name, DirectName) and name.transport == "OS":
        # Only messages of peers name such a queue: the name is not looked up for them.
        return ways.link_to_queue_manager(via, at)
    if via is not None and isinstance(name, DirectName):
        return ways.link_to_queue_manager(via, (name.host, name.port))
    if via is not None and isinstance(name, PublicName):
        return ways.link_to_queue_manager(via)
    if machine is not None:
        return ways.link_to_queue_manager(machine)
    if isinstance(name, DirectName) and name.transport in ("TCP", "OS"):
        return ways.link_to_address(name.host, name.port or PORT)
    if isinstance(name, PrivateName):
        return ways.link_to_queue_manager(name.queue_manager)
    if isinstance(name, DirectName):
        return ways.link_to_address(*url_address(name.transport.lower(), name.host, name.port))
    raise Refusal(
        "name_not_reachable",
        f"{name} cannot be reached: only direct names, and private queues of"
        " a queue manager that has a session with this one",
        "Use DIRECT=TCP:address\\queue or DIRECT=OS:host\\queue.",
    )


def check_urls(name: DirectName, *, enabled: bool) -> None:
    """Raise Refusal if names over HTTP lead nowhere."""
    if not enabled:
        raise Refusal(
            "name_not_reachable",
            f"{name} is reached over HTTP, for which the door for SRMP is not enabled",
            "Set enabled = true in the section [srmp], and run the door: docs/srmp.md.",
        )


def packet_address(name: FormatName, machine: bytes | None) -> QueueAddress:
    """Return the address of the destination as packets contain it.

    The address of a public queue contains its queue manager as well, so that a queue manager on
    the way finds that the message is not for its own queues. [MS-MQMQ] 2.2.19.2
    """
    address = queue_address(name)
    return address if machine is None else replace(address, queue_manager=machine)


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def stored_address(text: str) -> tuple[str, int] | None:
    """Return the address of a row; None: it has the GUID of a queue manager."""
    host, colon, port = text.rpartition(":")
    return (host.strip("[]"), int(port)) if colon and port.isdecimal() else None
