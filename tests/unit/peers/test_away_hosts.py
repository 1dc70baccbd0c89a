"""Probes of hosts that do not answer: how often, for how long, and after which errors."""

from __future__ import annotations

import errno
import socket

import pytest

from qmd.peers.away_hosts import (
    JITTER,
    KEPT_S,
    PATIENT_PROBES,
    PAUSE_MIN_S,
    PROBE_S,
    PROBES_PER_S,
    AwayHosts,
    is_away,
    probe_s,
)

PAUSE_S = 1.5


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), True),
        (TimeoutError(), True),
        (OSError(errno.EHOSTUNREACH, "no route"), True),
        (OSError(errno.EMFILE, "too many files"), False),
        (PermissionError(errno.EACCES, "a firewall of this computer"), False),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), False),
        (UnicodeError("not a name"), False),
    ],
)
def test_only_a_missing_answer_makes_a_host_away(error: OSError, is_it: bool) -> None:
    assert is_away(error) is is_it


def test_few_hosts_are_probed_within_the_pause_and_not_together() -> None:
    away = AwayHosts(PAUSE_S)
    pauses = {away.pause_s(f"host{number}", 3, 0.0, 100.0) for number in range(20)}

    assert len(pauses) > 10
    assert all((1 - JITTER) * PAUSE_S <= each <= PAUSE_S for each in pauses)


def test_the_time_of_a_probe_counts_towards_the_pause() -> None:
    away = AwayHosts(PAUSE_S)
    assert away.pause_s("a", 1, 0.5, 0.0) <= PAUSE_S - 0.5
    assert away.pause_s("a", 1, PROBE_S, 0.0) == PAUSE_MIN_S


def test_many_hosts_share_a_number_of_probes() -> None:
    away = AwayHosts(PAUSE_S)
    count = 1000
    for number in range(count):
        away.pause_s(f"host{number}", 1, 0.0, 100.0)

    pause_s = away.pause_s("host5", 2, 0.0, 101.0)
    assert (1 - JITTER) * count / PROBES_PER_S <= pause_s <= count / PROBES_PER_S
    assert away.pause_s("host5", 3, 0.0, 102.0 + KEPT_S) <= PAUSE_S  # the others are back


def test_some_probes_wait_for_the_whole_limit() -> None:
    limits = [probe_s(10.0, failures) for failures in range(2 * PATIENT_PROBES)]
    assert limits.count(10.0) == 2
    assert limits[0] == 10.0
    assert set(limits) == {10.0, PROBE_S}
    assert probe_s(0.5, 3) == 0.5
