"""Targets of a message: queues that can be sent to, and how each is reached."""

from __future__ import annotations

from dataclasses import dataclass, replace

from protocol.errors import InvalidName
from protocol.names.direct_name import DirectName, parse_address
from protocol.names.format_name import (
    ConnectorName,
    MachineName,
    MulticastName,
    PublicName,
    SingleName,
)
from protocol.names.path_name import parse_local_path
from qmd.directory.interface import (
    PRIVACY_OPTIONAL,
    EntryUnusable,
    MachineEntry,
)
from qmd.errors import Refusal


@dataclass(frozen=True, slots=True)
class Target:
    """One queue that receives a copy of the message.

    `name` is the name in the packet and of the outgoing queue; `element` is the index of the
    top-level element that it comes from. `direct` is a direct name that currently leads there, None
    for our own queues and for private names. `machine` is the queue manager of a public queue;
    `KeptAnswers.machine` returns its later addresses. `transactional` is None if it is unknown.
    """

    name: SingleName
    element: int
    direct: DirectName | None
    machine: MachineEntry | None = None
    transactional: bool | None = None
    #: The public queue takes signed messages only; its level of privacy.
    authenticate: bool = False
    privacy: str = PRIVACY_OPTIONAL

    @property
    def wants_protection(self) -> bool:
        """Return whether the queue refuses messages by their signature or encryption."""
        return self.authenticate or self.privacy != PRIVACY_OPTIONAL


def way_to(machine: MachineEntry, queue: str) -> DirectName:
    """Return a direct name for the machine. Raises EntryUnusable for an invalid address."""
    address = machine.addresses[0] if machine.addresses else machine.name
    try:
        transport, host, port = parse_address(address, 0, "address", None)
        return DirectName(transport, host, port, *parse_local_path(queue, 0, "queue"))
    except InvalidName as error:
        raise EntryUnusable(
            f"the directory's entry of {machine.name} has an address that is not valid: {error}"
        ) from error


def public_name(name: SingleName) -> PublicName:
    """Return the public name for a connector's queue, used for look-ups and in packets.

    [MS-MQQB] 3.1.7.4; UserHeader and MultiQueueFormatHeader have no form for connector names.
    """
    if isinstance(name, ConnectorName):
        return PublicName(name.connector)
    assert isinstance(name, PublicName)
    return name


def no_multicast(name: str) -> Refusal:
    """Return the refusal of a name with `MULTICAST=`, wherever it is used."""
    return Refusal(
        "name_not_reachable",
        f"{name} cannot be reached: messages go over TCP or HTTP, and not by multicast (PGM)",
        "Use DIRECT=TCP:address\\queue, DIRECT=OS:host\\queue or a URL; several names, a list or a"
        " topic reach many queues (docs/many-destinations.md).",
    )


def check_sendable(name: SingleName) -> None:
    """Raise Refusal for a name that can never be sent to."""
    if isinstance(name, MachineName) or (name.read_only and not isinstance(name, DirectName)):
        raise Refusal(
            "queue_read_only",
            f"{name} is a journal or dead-letter queue",
            "Journals and dead-letter queues can be read, but not sent to.",
        )
    if isinstance(name, ConnectorName) and name.suffix is not None:
        raise Refusal(
            "name_not_reachable",
            f"{name} is where a connector application reads transactional messages; a packet"
            " does not say for which of a connector's two queues it is",
            f"Send to {replace(name, suffix=None)}: the connector server puts transactional"
            " messages into that queue.",
        )
    if isinstance(name, MulticastName):
        raise no_multicast(str(name))
