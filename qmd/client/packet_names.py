"""Names of queues in packets as format names; the codec is imported on first use."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocol import MqfElement


@lru_cache(1024)
def direct_name(name: bytes) -> str:
    """Return the name of a direct queue as a format name."""
    from protocol.errors import InvalidName
    from protocol.names.format_name import parse_wire_name
    from protocol.text import plain_text

    try:
        return str(parse_wire_name(name))
    except InvalidName:
        # Shown unchanged: an invalid name must not make its message unreadable.
        return f"DIRECT={plain_text(name)}"


def element_name(element: MqfElement) -> str:
    """Return a queue of a list of queues as a format name.  [MS-MQMQ] 2.2.18.1.4"""
    from protocol.errors import InvalidName
    from protocol.names.format_name import (
        DistributionListName,
        PrivateName,
        PublicName,
        parse_wire_name,
    )
    from protocol.names.multi_queue import MQF_DIRECT, MQF_DISTRIBUTION_LIST
    from protocol.text import plain_text

    name = element.name
    if not isinstance(name, bytes):
        return str(PrivateName(name.queue_manager, name.number))
    if element.format_type == MQF_DIRECT:
        try:
            return str(parse_wire_name(name))
        except InvalidName:  # shown unchanged
            return f"DIRECT={plain_text(name)}"
    if element.format_type == MQF_DISTRIBUTION_LIST:
        return str(DistributionListName(name))
    return str(PublicName(name))
