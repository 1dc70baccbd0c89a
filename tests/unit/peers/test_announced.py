"""Announced sessions: each is for one connection, from one port, and for a short time."""

from __future__ import annotations

from qmd.peers.announced import ANNOUNCED_MAX, VALID_S, Announced, AnnouncedSessions

PLACE = ("127.0.0.1", 40_000)
HOST = Announced("10.0.0.7")


def test_the_session_from_the_announced_port_is_for_the_host_once() -> None:
    sessions = AnnouncedSessions()
    sessions.announce(PLACE, HOST, 1.0)

    assert sessions.take(("127.0.0.1", 40_001), 2.0) is None
    assert sessions.take(("10.0.0.9", 40_000), 2.0) is None
    assert sessions.take(PLACE, 2.0) == HOST
    assert sessions.take(PLACE, 2.0) is None


def test_an_announcement_ends() -> None:
    sessions = AnnouncedSessions()
    sessions.announce(PLACE, HOST, 1.0)

    assert sessions.take(PLACE, 1.0 + VALID_S) is None


def test_the_oldest_announcements_make_room() -> None:
    sessions = AnnouncedSessions()
    for port in range(ANNOUNCED_MAX + 1):
        sessions.announce(("127.0.0.1", port), HOST, 1.0)

    assert sessions.take(("127.0.0.1", 0), 2.0) is None
    assert sessions.take(("127.0.0.1", 1), 2.0) == HOST
