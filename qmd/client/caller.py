"""Requests over a connection that comes back.

When the connection is lost, the next request opens another, waiting a little
longer after each failure, up to `reconnect_s` in a row.  What was under way then
depends on the request:

    ask        changes nothing: it is simply made again
    change     raises OutcomeUnknown
    change_once  carries a token: the queue manager is asked what became of it,
               and it is made again only if it was not done
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qmd.client.address import Address, SocketAddress
from qmd.client.connection import Connection, open_connection
from qmd.client.errors import (
    ClientError,
    LoginRefused,
    NotConnected,
    OutcomeUnknown,
    QueueManagerError,
    Stopping,
    TooLarge,
)
from qmd.client.forks import Home
from qmd.control_protocol import messages as frames

BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 2.0

Verb = Callable[..., frames.Request]


class Patience:
    """Waits after a failure, longer each time, and gives up after `limit_s` of them in a row."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._first_at = self._last_at = float("-inf")
        self._next_s = BACKOFF_FIRST_S

    async def wait(self, failure: ClientError) -> None:
        """Raises `failure` when the limit is used up."""
        now = asyncio.get_running_loop().time()
        if now - self._last_at > self._limit_s:  # all was well for a long time
            self._first_at, self._next_s = now, BACKOFF_FIRST_S
        self._last_at = now
        left_s = self._first_at + self._limit_s - now
        if left_s <= 0:
            raise failure
        await asyncio.sleep(min(self._next_s, left_s))
        self._next_s = min(2 * self._next_s, BACKOFF_MAX_S)


class Caller:
    """What all parts of a `QueueManager` make their requests with."""

    def __init__(self, path: Path | Address, *, reconnect_s: float) -> None:
        self._path = SocketAddress(path) if isinstance(path, Path) else path
        self._reconnect_s = reconnect_s
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._is_closed = False
        self.home = Home()
        self.queue_manager = ""  # its GUID, as text
        self.name = ""
        self.message_bytes_max = frames.FRAME_BYTES_MAX  # of a body; the daemon says how much

    def check_body(self, body: bytes) -> None:
        """Raises TooLarge for one that the daemon would refuse once it had read it."""
        if len(body) > self.message_bytes_max:
            raise TooLarge(
                f"the body has {len(body)} bytes; {self.message_bytes_max} are allowed",
                "see message_bytes_max in the section [quotas] of the daemon's configuration",
                code="body_too_large",
            )

    def patience(self) -> Patience:
        return Patience(self._reconnect_s)

    async def open(self) -> None:
        """The first connection: one try, no waiting.  Raises NotConnected."""
        self.home.settle()
        self._connection = await self._open()

    async def close(self) -> None:
        self._is_closed = True
        if self._connection is not None:
            await self._connection.close()

    @property
    def live_connection(self) -> Connection | None:
        connection = self._connection
        return None if connection is None or connection.is_lost else connection

    async def connection(self) -> Connection:
        """A connection that was alive a moment ago.  Raises NotConnected, and ClientError in a
        process that was forked."""
        self.home.check()
        if connection := self.live_connection:
            await connection.has_room()
        if connection := self.live_connection:
            return connection
        async with self._connecting:
            return self.live_connection or await self._reconnect()

    async def ask(self, verb: Verb, *arguments: object) -> Any:
        """Make a request that changes nothing, as often as it takes."""
        patience = self.patience()
        while True:
            connection = await self.connection()
            try:
                return await connection.ask(verb, *arguments)
            except (NotConnected, Stopping) as failure:
                if self._is_closed:
                    raise
                await patience.wait(failure)

    async def change(self, verb: Verb, *arguments: object, safe_to_retry: bool) -> Any:
        """Make a request that changes something.

        Raises NotConnected when it was not made at all, and OutcomeUnknown when the
        connection was lost before its answer came.
        """
        patience = self.patience()
        while True:
            connection = await self.connection()
            answer = connection.ask(verb, *arguments)
            try:
                return await answer
            except Stopping as failure:  # it was not done: the next daemon may do it
                await patience.wait(failure)
            except NotConnected as lost:
                raise OutcomeUnknown(lost.text, safe_to_retry=safe_to_retry) from lost

    async def change_once(self, verb: Verb, *arguments: object, token: bytes) -> Any:
        """Make a request whose last field is a token, so that it is done exactly once."""
        try:
            return await self.change(verb, *arguments, token, safe_to_retry=False)
        except OutcomeUnknown:
            return await self.change_again(verb, *arguments, token=token)

    async def change_again(self, verb: Verb, *arguments: object, token: bytes) -> Any:
        """The same for a request whose answer was lost: first ask whether it was done."""
        patience = self.patience()
        while True:
            try:
                result = await self.outcome(token)
                if result is not None:
                    return result
                return await self.change(verb, *arguments, token, safe_to_retry=False)
            except OutcomeUnknown as failure:
                if failure.token:  # not even the outcome could be asked for
                    raise
                await patience.wait(failure)

    async def outcome(self, token: bytes) -> Any:
        """The result of the request that carried `token`, or None when it was not done.

        Raises OutcomeUnknown, with the token, when nobody answers.
        """
        try:
            return await self.ask(frames.Outcome, token)
        except NotConnected as failure:
            raise OutcomeUnknown(failure.text, safe_to_retry=False, token=token) from failure

    async def _reconnect(self) -> Connection:
        patience = self.patience()
        while not self._is_closed:
            try:
                self._connection = await self._open()
                return self._connection
            except LoginRefused:
                raise
            except NotConnected as failure:
                await patience.wait(failure)
        raise NotConnected("this client was closed", "connect again", code="client_closed")

    async def _open(self) -> Connection:
        connection = await open_connection(self._path)
        try:
            verb, arguments = self._path.greeting()
            try:
                hello = await connection.ask(verb, *arguments)
            except QueueManagerError as refusal:
                if refusal.code not in ("versions_differ", "token_refused", "login_first"):
                    raise
                # Nobody can do better by trying again.
                raise LoginRefused(
                    f"{self._path}: {refusal.text}", refusal.remedy, code=refusal.code
                ) from refusal
            self._check(hello)
        except BaseException:
            await connection.close()
            raise
        return connection

    def _check(self, hello: dict[str, Any]) -> None:
        if hello["version"] != frames.VERSION:
            raise NotConnected(
                f"the daemon at {self._path} speaks version {hello['version']} of the control"
                f" protocol, and this client version {frames.VERSION}",
                "install the same release on both sides",
                code="versions_differ",
            )
        # A token means something only to the queue manager that stored it.
        if self.queue_manager not in ("", hello["queue_manager"]):
            raise NotConnected(
                f"another queue manager answers at {self._path} now ({hello['name']})",
                "connect anew",
                code="other_queue_manager",
            )
        self.queue_manager, self.name = hello["queue_manager"], hello["name"]
        self.message_bytes_max = hello.get("message_bytes_max", self.message_bytes_max)
