"""Announced sessions: each is for one connection, from one port, and for a short time."""

from __future__ import annotations

from qmd.peers.announced import ANNOUNCED_MAX, VALID_S, Announced, AnnouncedSessions

PLACE = ("127.0.0.1", 40_000)


class Session:
    """A session that has begun."""

    is_open = True

    def close(self, reason: str) -> None:
        self.is_open = False


SESSION = Session()


def host() -> Announced:
    return Announced("10.0.0.7")


def test_the_session_from_the_announced_port_is_for_the_host_once() -> None:
    sessions = AnnouncedSessions()
    sessions.announce(PLACE, expected := host(), 1.0)

    assert sessions.take(("127.0.0.1", 40_001), SESSION, 2.0) is None
    assert sessions.take(("10.0.0.9", 40_000), SESSION, 2.0) is None
    assert sessions.take(PLACE, SESSION, 2.0) is expected
    assert sessions.take(PLACE, SESSION, 2.0) is None


def test_an_announcement_ends() -> None:
    sessions = AnnouncedSessions()
    sessions.announce(PLACE, expected := host(), 1.0)

    assert sessions.take(PLACE, SESSION, 1.0 + VALID_S) is None
    assert expected.has_ended


def test_the_oldest_announcements_make_room() -> None:
    sessions = AnnouncedSessions()
    hosts = [host() for _ in range(ANNOUNCED_MAX + 1)]
    for port, expected in enumerate(hosts):
        sessions.announce(("127.0.0.1", port), expected, 1.0)

    assert sessions.take(("127.0.0.1", 0), SESSION, 2.0) is None
    assert sessions.take(("127.0.0.1", 1), SESSION, 2.0) is hosts[1]
    assert [each.has_ended for each in hosts[:3]] == [True, False, False]


def test_the_end_of_its_principals_ends_a_session_and_prevents_one() -> None:
    sessions, session = AnnouncedSessions(), Session()
    sessions.announce(PLACE, begun := host(), 1.0)
    assert not begun.has_ended
    assert sessions.take(PLACE, session, 2.0) is begun
    assert not begun.has_ended

    begun.end()
    assert begun.has_ended
    assert not session.is_open

    sessions.announce(PLACE, waiting := host(), 3.0)
    waiting.end()
    assert sessions.take(PLACE, Session(), 4.0) is None
