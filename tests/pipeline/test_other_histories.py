"""Which candidates another history of their host may explain: those of a silent stretch."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")

import numpy as np
import pandas as pd

from pipeline.events import hash_of
from pipeline.jobs.audit.clock_spans import SLOT_BOUNDS, Spans
from pipeline.jobs.audit.fingerprints import RowKind
from pipeline.jobs.audit.other_histories import OTHER_HISTORY, STARTS, Logs, leave_open, starts
from pipeline.jobs.audit.survey import RUN_COLUMNS

HOST, PEER, QUEUE = 7, 8, 9
STREAM, SEQUENCE = 5, 3 << 32  # of `PEER`: number 4 is the message that each case is about
BEGIN, START = 1_000_000, 5_000_000  # the last event, and the start: in milliseconds
MINUTE = 60_000


def run(what: RowKind, stream: int, key: int, at_ms: int, host: int) -> dict[str, int]:
    return dict.fromkeys(RUN_COLUMNS, 0) | {
        "what": what, "source": PEER, "stream": stream, "key_first": key, "key_last": key,
        "host": host, "queue": QUEUE, "at_first": at_ms, "at_last": at_ms,
    }  # fmt: skip


def reasons(
    *acts: tuple[str, int],
    runs: tuple[dict[str, int], ...] = (),
    named: int = hash_of(""),
    peer_starts: tuple[int, ...] = (),
    holes: tuple[tuple[int, ...], ...] = (),
) -> list[str]:
    """Return why the candidates, each a kind and a time, stay open: "" if one is proved.

    `runs` are those of streams, `named` is the run of the start, `peer_starts` the times of starts
    of the source, `holes` the missing parts of logs: host, blocks and times.
    """
    rows = pd.DataFrame(
        {
            "kind": [kind for kind, _ in acts],
            "source": [PEER] * len(acts),
            "stream": [STREAM] * len(acts),
            "sent_queue": [QUEUE] * len(acts),
            "key": pd.array([SEQUENCE | 4] * len(acts), "Int64"),
            "covering": pd.array([HOST] * len(acts), "Int64"),
            "clock_of": pd.array([HOST] * len(acts), "Int64"),  # by the clock of the host itself
            "ack_at": pd.array([at for _, at in acts], "Int64"),
            "accepted_at": pd.array([at for _, at in acts], "Int64"),
        }
    )
    why = np.full(len(acts), "", dtype=object)
    known = [(HOST, 9, BEGIN, START, named), *((PEER, 9, -1, at, 0) for at in peer_starts)]
    logs = Logs(
        pd.DataFrame(known, columns=STARTS),
        pd.DataFrame(runs, columns=RUN_COLUMNS).astype(np.int64),
        pd.DataFrame(holes, columns=["host", "block_first", "block_last", "at_first", "at_last"]),
    )
    # The clocks of both hosts are equal.
    bounds = [(PEER, HOST, 0, 0, at, 0, at) for at in (BEGIN, START)]
    leave_open(rows, why, logs, Spans(pd.DataFrame(bounds, columns=SLOT_BOUNDS)))
    return list(why)


def is_open(*acts: tuple[str, int], **shown: Any) -> list[bool]:
    return [each == OTHER_HISTORY for each in reasons(*acts, **shown)]


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


def test_a_start_that_names_its_run_shows_that_its_folder_was_put_back() -> None:
    early, late = (LOST, BEGIN + 2000), (LOST, BEGIN + 2 * MINUTE)

    assert is_open(late, named=77) == [True]
    assert is_open(early, named=77) == [True]
    # All of many were lost at once, and nothing shows it at work later: those before a crash.
    assert is_open(*[early] * 3, named=77) == [False] * 3
    assert is_open(*[early] * 3, late, named=77) == [True] * 4


def test_a_later_message_of_the_sequence_shows_that_the_host_knew_it() -> None:
    late = [(LOST, BEGIN + 2 * MINUTE)] * 3
    accepted = [
        run(RowKind.ACCEPTED, STREAM, key, START + MINUTE, HOST)
        for key in (SEQUENCE | 3, SEQUENCE | 5, SEQUENCE + (1 << 32) | 1)
    ]

    assert is_open(*late, runs=(accepted[0],)) == [True] * 3
    assert is_open(*late, runs=(accepted[1],)) == [False] * 3
    assert is_open(*late, runs=(accepted[2],)) == [True] * 3  # another sequence
    assert is_open(*late, runs=(accepted[1],), named=77) == [False] * 3


def test_another_stream_shows_that_the_host_knew_no_numbers_any_more() -> None:
    late, at = (LOST, BEGIN + 2 * MINUTE), START + MINUTE
    other = (run(RowKind.SENT, STREAM + 1, 1, at, PEER),)

    assert is_open(late, runs=other) == [True]
    assert is_open(late, runs=other, peer_starts=(START,)) == [False]  # its own start began it
    assert is_open(late, runs=(run(RowKind.SENT, STREAM + 1, 1, BEGIN, PEER),)) == [False]


def test_the_missing_log_of_another_host_may_show_more_work() -> None:
    late, end = (LOST, BEGIN + 2 * MINUTE), 1 << 62
    exchanged = (run(RowKind.ACCEPTED, STREAM + 1, 1, BEGIN - MINUTE, HOST),)

    def of(*hole: int, runs: tuple[dict[str, int], ...] = exchanged) -> list[str]:
        return reasons(late, runs=runs, holes=(hole,))

    assert of(PEER, 50, end, BEGIN + MINUTE, end) == ["late_log"]
    assert of(PEER, 50, 60, BEGIN + MINUTE, BEGIN + 2 * MINUTE) == ["log_hole"]
    assert of(PEER, 50, end, START, end) == [""]
    assert of(PEER, 50, 60, BEGIN - MINUTE, BEGIN) == [""]
    assert of(PEER, 50, end, BEGIN + MINUTE, end, runs=()) == [""]


def test_the_event_before_a_start_may_be_in_another_file_or_night() -> None:
    known = pd.DataFrame([(HOST, 9, -1, START, 0)], columns=STARTS)
    again = pd.DataFrame([(HOST, 9, BEGIN, START, 0), (HOST, 20, -1, START + 9, 0)], columns=STARTS)
    covered = pd.DataFrame({"host": [HOST, HOST], "block_last": [8, 15], "at_last": [BEGIN, 77]})

    assert starts(known, known[:0], covered).at_from.tolist() == [BEGIN]
    assert starts(known, again, covered[:0]).at_from.tolist() == [BEGIN, -1]
    assert starts(known[:0], known[:0], covered).at_from.tolist() == []
