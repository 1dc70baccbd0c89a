"""Which candidates another history of their host may explain: those of a silent stretch."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")

import numpy as np
import pandas as pd

from pipeline.jobs.audit.clock_spans import SLOT_BOUNDS, Spans
from pipeline.jobs.audit.other_histories import OTHER_HISTORY, STARTS, leave_open, starts

HOST = 7
BEGIN, START = 1_000_000, 5_000_000  # the last event, and the start: in milliseconds
MINUTE = 60_000


def is_open(*acts: tuple[str, int]) -> list[bool]:
    """Return which of the candidates, each a kind and a time, stay open."""
    rows = pd.DataFrame(
        {
            "kind": [kind for kind, _ in acts],
            "covering": pd.array([HOST] * len(acts), "Int64"),
            "clock_of": pd.array([HOST] * len(acts), "Int64"),  # by the clock of the host itself
            "ack_at": pd.array([at for _, at in acts], "Int64"),
            "accepted_at": pd.array([at for _, at in acts], "Int64"),
        }
    )
    why = np.full(len(acts), "", dtype=object)
    known = pd.DataFrame([(HOST, 9, BEGIN, START, 0)], columns=STARTS)
    leave_open(rows, why, known, Spans(pd.DataFrame(columns=SLOT_BOUNDS)))
    return [each == OTHER_HISTORY for each in why]


LOST, FORGED = "acked_not_stored", "never_sent"


def test_three_messages_or_one_in_each_direction_show_another_history() -> None:
    late = BEGIN + 2 * MINUTE

    assert is_open((LOST, late)) == [False]
    assert is_open((LOST, late), (LOST, late + 9)) == [False, False]
    assert is_open((LOST, late), (FORGED, late + 9)) == [True, True]
    assert is_open(*[(LOST, late + n) for n in range(3)]) == [True] * 3
    assert is_open(*[(FORGED, late + n) for n in range(3)]) == [True] * 3


def test_a_minute_of_work_may_be_the_last_commits_before_a_crash() -> None:
    early = [(LOST, BEGIN + n * 1000) for n in range(50)]

    assert is_open(*early) == [False] * 50
    assert is_open(*early, (LOST, BEGIN + 2 * MINUTE)) == [True] * 51


def test_messages_from_before_and_after_the_stretch_are_decided() -> None:
    inside = [(LOST, BEGIN + (n + 2) * MINUTE) for n in range(3)]
    outside = [(LOST, BEGIN - MINUTE), (LOST, START + MINUTE)]

    assert is_open(*inside, *outside) == [True] * 3 + [False] * 2


def test_the_event_before_a_start_may_be_in_another_file_or_night() -> None:
    known = pd.DataFrame([(HOST, 9, -1, START, 0)], columns=STARTS)
    again = pd.DataFrame([(HOST, 9, BEGIN, START, 0), (HOST, 20, -1, START + 9, 0)], columns=STARTS)
    covered = pd.DataFrame({"host": [HOST, HOST], "block_last": [8, 15], "at_last": [BEGIN, 77]})

    assert starts(known, known[:0], covered).at_from.tolist() == [BEGIN]
    assert starts(known, again, covered[:0]).at_from.tolist() == [BEGIN, -1]
    assert starts(known[:0], known[:0], covered).at_from.tolist() == []
