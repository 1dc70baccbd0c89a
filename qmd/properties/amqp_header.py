"""The header of AMQP (clause 3.2.1) of a message, beside the fields of MSMQ that correspond to it.

What MSMQ has no field for is in `MessageProperties.more`, under the keys of this module.
"""

from __future__ import annotations

from qmd.properties.values import PRIORITY as STANDARD_PRIORITY
from qmd.properties.values import MessageProperties, plain

PRIORITY, DURABLE, FIRST_ACQUIRER = "amqp-priority", "amqp-durable", "amqp-first-acquirer"
#: Priorities of AMQP and JMS have 10 levels, those of MSMQ 8; the defaults 4 and 3 correspond.
PRIORITIES = (0, 0, 1, 2, 3, 4, 5, 6, 7, 7)
SHOWN_PRIORITIES = (1, 2, 3, 4, 5, 6, 7, 8)
DEFAULT_PRIORITY = 4


def priority_of(properties: MessageProperties, priority: int, *, transactional: bool) -> int:
    """Return the priority of AMQP of a message with a priority of MSMQ, which transactional
    messages have not."""
    for given in (properties.more.get(PRIORITY), plain(properties.standard.get(STANDARD_PRIORITY))):
        if isinstance(given, int):
            return min(max(given, 0), 255)
    return DEFAULT_PRIORITY if transactional else SHOWN_PRIORITIES[priority]


def is_durable(properties: MessageProperties, *, recoverable: bool) -> bool:
    """Return whether a message is durable for AMQP: a sender may call a recoverable one not so."""
    return recoverable and properties.more.get(DURABLE) is not False


def is_first_acquirer(properties: MessageProperties, *, abort_count: int) -> bool:
    """Return whether the sender called its receiver the first, and no receiver has failed."""
    return properties.more.get(FIRST_ACQUIRER) is True and not abort_count
