"""Names of administration queues, as the packets of messages state them."""

from __future__ import annotations

from functools import lru_cache

from protocol import DirectQueueName, PrivateQueueName
from protocol.names.direct_name import parse_wire_name
from protocol.names.format_name import FormatName, PrivateName, PublicName
from qmd.core.acknowledgment import AckDestination


def administration_name(destination: AckDestination) -> FormatName:
    """Return the name of an administration queue.  Raises InvalidName."""
    if isinstance(destination, DirectQueueName):
        return _parsed(destination.name)
    if isinstance(destination, PrivateQueueName):
        return PrivateName(destination.queue_manager, destination.number)
    return PublicName(destination)


# The messages of one application name the same few queues, and a message up to a hundred.
_parsed = lru_cache(256)(parse_wire_name)
