"""Logins: passwords, tokens and one-time links become sessions; failures slow attempts down.

A session is a random cookie that only this process knows; a restart ends all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable

from qmd.console.roles import Identity
from qmd.console.users import Users
from qmd.doors.passwords import normalized
from qmd.doors.users import PASSWORD_BYTES_MAX, Verifier
from qmd.doors.users import Users as DoorUsers

SESSIONS_MAX = 1000
SESSIONS_OF_NAME_MAX = 50
FREE_FAILURES = 5  # attempts before the first wait
WAIT_MAX_S = 300.0
NAME_WAIT_MAX_S = 30.0  # a stranger must not keep a user out for long
FAILURES_MAX = 10_000  # addresses and names that are remembered
WAITING_MAX = 100  # attempts of one address or one name
CHECKS_MAX = 2  # passwords that are checked at once
LINK_S = 600.0

Clock = Callable[[], float]


class Session:
    """One login of one browser."""

    def __init__(self, identity: Identity, now: float) -> None:
        self.identity = identity
        self.key = secrets.token_urlsafe(32)
        self.csrf = secrets.token_urlsafe(32)
        self.began_at = self.used_at = now
        self.checked_at = now  # its token
        self.user: int | None = None  # of this computer, which has logged in; None: elsewhere
        self.notice = ""  # the result of the last action, shown once

    def fits(self, csrf: str) -> bool:
        """Return whether a form came from a page of this session."""
        return hmac.compare_digest(csrf.encode("utf-8", "replace"), self.csrf.encode())


class Sessions:
    """All logins, by their cookies."""

    def __init__(self, clock: Clock, *, idle_s: float, age_s: float) -> None:
        self._clock = clock
        self._idle_s = idle_s
        self._age_s = age_s
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def begin(self, identity: Identity) -> Session:
        """Return a new session; the oldest one of a name, or of all, leaves for it."""
        session = Session(identity, self._clock())
        same = [each for each in self._sessions.values() if each.identity.name == identity.name]
        if len(same) >= SESSIONS_OF_NAME_MAX:
            self.end(same[0])
        while len(self._sessions) >= SESSIONS_MAX:
            self._sessions.popitem(last=False)
        self._sessions[session.key] = session
        return session

    def find(self, key: str) -> Session | None:
        """Return the session of a cookie, unless it has ended."""
        session = self._sessions.get(key)
        now = self._clock()
        if session is None:
            return None
        if now - session.used_at > self._idle_s or now - session.began_at > self._age_s:
            self.end(session)
            return None
        session.used_at = now
        self._sessions.move_to_end(key)
        return session

    def end(self, session: Session) -> None:
        """End a session."""
        self._sessions.pop(session.key, None)


class Brake:
    """Waits after failed logins, by address and by name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()  # count, not before
        self._known: OrderedDict[str, None] = OrderedDict()

    def knows(self, client: str) -> bool:
        """Return whether a client under a name has logged in."""
        return client in self._known

    def wait_s(self, *keys: str) -> float:
        """Return how long the next attempt has to wait."""
        now = self._clock()
        return max((self._failures[key][1] - now for key in keys if key in self._failures),
                   default=0.0)  # fmt: skip

    def failed(self, key: str, wait_max_s: float = WAIT_MAX_S) -> None:
        """Count a failure: from the fifth on each wait is twice the one before."""
        count = self._failures.pop(key, (0, 0.0))[0] + 1
        exponent = min(count - FREE_FAILURES, 12)
        pause_s = min(wait_max_s, 2.0**exponent) if count >= FREE_FAILURES else 0.0
        self._failures[key] = count, self._clock() + pause_s
        while len(self._failures) > FAILURES_MAX:
            self._failures.popitem(last=False)

    def succeeded(self, *keys: str, known: str = "") -> None:
        """Forget the failures; `known` is a client under a name that has logged in."""
        for key in keys:
            self._failures.pop(key, None)
        self._known.pop(known, None)
        self._known[known] = None
        while len(self._known) > FAILURES_MAX:
            self._known.popitem(last=False)


class Turns:
    """Attempts of one address or one name, one after the other: many at once gain nothing."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}  # with the number that use it

    @contextlib.asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[bool]:
        """Wait for the turn of an attempt; False: too many wait already."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        if users >= WAITING_MAX:
            yield False
            return
        self._locks[key] = lock, users + 1
        try:
            async with lock:
                yield True
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = lock, users - 1


class Passwords:
    """Checks of passwords, few at once, outside of the event loop."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._decoys = DoorUsers(None)
        self._gate = asyncio.Semaphore(CHECKS_MAX)

    async def check(self, name: str, password: str) -> Identity | None:
        """Return the user with this password, or None: both take the same time.

        Raises BadUsers.
        """
        async with self._gate:
            user = self._users.find(name)
            verifier: Verifier = user.verifier if user else self._decoys.decoy(name)
            given = normalized(password)[: PASSWORD_BYTES_MAX + 1]
            is_right = len(given) <= PASSWORD_BYTES_MAX and await asyncio.to_thread(
                verifier.is_of, given
            )
        return (
            Identity(name, user.role, str(user.verifier)) if user is not None and is_right else None
        )

    def is_current(self, identity: Identity) -> bool:
        """Return whether a user still exists with its role and its password.  Raises BadUsers."""
        if identity.token or identity.is_own:
            return True
        user = self._users.find(identity.name)
        return (
            user is not None and user.role == identity.role and str(user.verifier) == identity.proof
        )


class Link:
    """A link that logs in once, for the user that started the console in a terminal."""

    def __init__(self, identity: Identity, clock: Clock) -> None:
        self._identity: Identity | None = identity
        self._clock = clock
        self._until = clock() + LINK_S
        self.key = secrets.token_urlsafe(32)

    def use(self, key: str) -> Identity | None:
        """Return the identity, the first time that the key is right."""
        is_right = hmac.compare_digest(key.encode("utf-8", "replace"), self.key.encode())
        if not is_right or self._clock() > self._until:
            return None
        identity, self._identity = self._identity, None
        return identity
