"""The extended interval of the confirmation process, row by row of its source document."""

import pytest

from qmd.core.confirmation import extended_interval_s
from qmd.core.packet_fields import INFINITE_S


@pytest.mark.parametrize(
    ("time_to_be_received_s", "time_to_reach_queue_s", "delay_s", "interval_s"),
    [
        # Time-to-be-received not set: infinite, and any additional time is irrelevant.
        (None, None, None, None),
        (None, 5, None, None),
        (None, None, 7, None),
        (INFINITE_S, 5, 7, None),
        # XactDelayReceiveNack set: time-to-be-received + XactDelayReceiveNack.
        (10, None, 7, 17),
        (10, 3, 7, 17),
        (10, 30, 7, 17),
        (10, 30, 0, 10),
        # Neither set: time-to-be-received + time-to-be-received.
        (10, None, None, 20),
        (400_000, None, None, 800_000),  # more than the four days that the message then states
        # Time-to-reach-queue set: time-to-be-received + min(both).
        (10, 3, None, 13),
        (10, 10, None, 20),
        (10, 30, None, 20),
        (10, INFINITE_S, None, 20),
        (0, 30, None, 0),
    ],
)
def test_the_extended_interval_follows_the_table(
    time_to_be_received_s, time_to_reach_queue_s, delay_s, interval_s
):
    found = extended_interval_s(time_to_be_received_s, time_to_reach_queue_s, delay_s)

    assert found == interval_s
