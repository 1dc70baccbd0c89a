"""Time after which a transactional message without a confirmation of receipt is unconfirmed.

The source document of the transaction confirmation process defines it in a table, by the settings
of the message and by XactDelayReceiveNack (here `[delivery] xact_delay_receive_nack`):

    time-to-be-received   time-to-reach-queue   delay set   the copy is unconfirmed after
    not set               -                     -           never
    set                   -                     yes         time-to-be-received + delay
    set                   not set               no          2 x time-to-be-received
    set                   set                   no          time-to-be-received + the shorter one

A time-to-reach-queue counts as set only if the application has set it: the default of four days in
a message does not count. The interval begins when the message is sent, as its time-to-be-received
does ([MS-MQMQ] 2.2.19.2), so the application can compute it as well.
"""

from __future__ import annotations

from qmd.core.packet_fields import INFINITE_S


def extended_interval_s(
    time_to_be_received_s: int | None, time_to_reach_queue_s: int | None, delay_s: int | None
) -> int | None:
    """Return the interval in whole seconds from the sent time; None: no limit.

    The first two arguments are the values set by the application (None or INFINITE_S: not set), the
    third is the configured delay (None: not set).
    """
    if time_to_be_received_s is None or time_to_be_received_s == INFINITE_S:
        return None
    if delay_s is not None:
        return time_to_be_received_s + delay_s
    if time_to_reach_queue_s is None:
        return 2 * time_to_be_received_s
    return time_to_be_received_s + min(time_to_be_received_s, time_to_reach_queue_s)
