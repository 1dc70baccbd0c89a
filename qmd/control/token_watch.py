"""Watch over the tokens of logged-in clients: a revoked or expired token ends its connections.

A request is checked when it arrives; the watch also ends connections that only wait, such as those
of readers.  It writes the last use of each token as well.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, NamedTuple

import structlog

from qmd.access.tokens import USES, Grant, TokenFile, TokenFileError, Uses

if TYPE_CHECKING:
    from qmd.runtime.services import Services

log = structlog.get_logger()

LOOK_S = 0.5
GRACE_S = 0.5  # for a client that has to close its end too; TLS alone would wait for half a minute
WRITE_S = 60.0  # uses are written at most this often


class Holder(NamedTuple):
    """A connection that has logged in.

    `end` closes it after its answers. A client that reads none of them, or keeps its end of TLS
    open, would go on waiting for messages, and hide those that it gets: `abort` ends it soon after.
    """

    grant: Grant
    host: str
    end: Callable[[], None]
    abort: Callable[[], None]
    has_ended: Callable[[], bool] = bool  # of a connection that does not remove itself
    certified_until_s: float = math.inf  # in seconds since 1970: its certificate expires then


class TokenWatch:
    """The holders of tokens, and the last uses."""

    def __init__(self, services: Services, tokens: TokenFile) -> None:
        self._services = services
        self._tokens = tokens
        self._holders: dict[Hashable, Holder] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._uses = Uses(services.settings.queue_manager.data / USES)
        self._written_at_s = -WRITE_S
        self._must_write = False

    def add(self, connection: Hashable, holder: Holder) -> None:
        """Watch over a connection that has just logged in."""
        self._holders[connection] = holder
        self.used(holder.grant, holder.host)
        if self._timer is None:
            self._look()

    def remove(self, connection: Hashable) -> None:
        self._holders.pop(connection, None)

    def used(self, grant: Grant, host: str) -> None:
        """Record the use of a token."""
        self._uses.record(grant.name, host, self._services.environment.time())
        self._must_write = True

    def is_valid(self, grant: Grant) -> bool:
        """Return whether a grant is in the file and has not expired.

        If the file cannot be read, no grant is valid.
        """
        try:
            return self._tokens.still_has(grant, self._services.environment.time())
        except TokenFileError as error:
            log.error("token_file_broken", reason=str(error))
            return False

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._write()

    def _look(self) -> None:
        now_s = self._services.environment.time()
        for connection, holder in list(self._holders.items()):
            if holder.has_ended():
                self.remove(connection)
            elif now_s >= holder.certified_until_s:
                log.info("remote_certificate_ended", token=holder.grant.name, address=holder.host)
                self._end(connection, holder)
            elif not self.is_valid(holder.grant):
                log.info("remote_token_ended", token=holder.grant.name, address=holder.host)
                self._end(connection, holder)
        if self._must_write and self._services.loop.time() >= self._written_at_s + WRITE_S:
            self._write()
        self._timer = None
        if self._holders:
            self._timer = self._services.loop.call_later(LOOK_S, self._look)

    def _end(self, connection: Hashable, holder: Holder) -> None:
        self.remove(connection)
        holder.end()
        self._services.loop.call_later(GRACE_S, holder.abort)

    def _write(self) -> None:
        if not self._must_write:
            return
        self._must_write = False
        self._written_at_s = self._services.loop.time()
        try:
            self._uses.write(grant.name for grant in self._tokens.grants())
        except (OSError, TokenFileError) as error:
            self._services.log_limited("token_uses_not_written", "", reason=str(error))


class TokenLogins:
    """The tokens of this queue manager, and the connections that have logged in with them."""

    def __init__(self, services: Services) -> None:
        self.tokens = TokenFile(services.settings.remote.tokens)
        self.watch = TokenWatch(services, self.tokens)
        self._services = services

    def find(self, token: str) -> Grant | None:
        """Return the grant of a token; None if there is none that is valid."""
        try:
            return self.tokens.find(token, self._services.environment.time())
        except TokenFileError as error:
            log.error("token_file_broken", reason=str(error))
            return None
