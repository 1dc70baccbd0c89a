"""Requests over a connection that is opened again when it is lost.

When the connection is lost, the next request opens another one.  The wait before each attempt grows
after every failure, up to `reconnect_s` in a row.  Requests under way at the loss are handled by
kind:

    ask          changes nothing: it is repeated
    change       raises OutcomeUnknown
    change_once  carries a token: the queue manager is asked for its outcome,
                 and the request is repeated only if it was not done
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qmd.client.address import Address, DoorAddress, SocketAddress
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
from qmd.control_protocol.access import ActFor

if TYPE_CHECKING:
    from qmd.client.signing import Signer

BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 2.0

Verb = Callable[..., frames.Request]


class Patience:
    """Waits between attempts, longer after each failure, for at most `limit_s` in a row."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._first_at = self._last_at = float("-inf")
        self._next_s = BACKOFF_FIRST_S

    async def wait(self, failure: ClientError) -> None:
        """Wait before the next attempt.  Raises `failure` when the limit is used up."""
        now = asyncio.get_running_loop().time()
        if now - self._last_at > self._limit_s:  # there was no failure for a long time
            self._first_at, self._next_s = now, BACKOFF_FIRST_S
        self._last_at = now
        left_s = self._first_at + self._limit_s - now
        if left_s <= 0:
            raise failure
        await asyncio.sleep(min(self._next_s, left_s))
        self._next_s = min(2 * self._next_s, BACKOFF_MAX_S)


class Caller:
    """The requests of a `QueueManager`, shared by all of its parts."""

    def __init__(self, path: Path | Address, *, reconnect_s: float) -> None:
        self._path = SocketAddress(path) if isinstance(path, Path) else path
        self._reconnect_s = reconnect_s
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._is_closed = False
        self.home = Home()
        self.queue_manager = ""  # its GUID, as text
        self.name = ""
        self.token_name = ""  # nosec B105: of the token that it has logged in with
        self.message_bytes_max = frames.FRAME_BYTES_MAX  # limit for a body; the daemon announces it
        self.signer: Signer | None = None  # of all messages that are sent

    def check_body(self, body: bytes) -> None:
        """Raise TooLarge for a body that the daemon would refuse after reading it."""
        if len(body) > self.message_bytes_max:
            raise TooLarge(
                f"the body has {len(body)} bytes; {self.message_bytes_max} are allowed",
                "see message_bytes_max in the section [quotas] of the daemon's configuration",
                code="body_too_large",
            )

    def patience(self) -> Patience:
        return Patience(self._reconnect_s)

    async def open(self) -> None:
        """Open the first connection, with one attempt and without waiting.  Raises NotConnected."""
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
        """Return a connection that has not been lost as far as this process knows.

        Raises NotConnected, and ClientError in a process that was forked.
        """
        self.home.check()
        if connection := self.live_connection:
            await connection.has_room()
        if connection := self.live_connection:
            return connection
        async with self._connecting:
            return self.live_connection or await self._reconnect()

    async def ask(self, verb: Verb, *arguments: object) -> Any:
        """Make a request that changes nothing; repeat it when the connection is lost."""
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

        Raises NotConnected when the request was not made at all, and OutcomeUnknown when the
        connection was lost before the answer arrived.
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
        """Make a request that ends with a token, so that it is done exactly once."""
        try:
            return await self.change(verb, *arguments, token, safe_to_retry=False)
        except OutcomeUnknown:
            return await self.change_again(verb, *arguments, token=token)

    async def change_again(self, verb: Verb, *arguments: object, token: bytes) -> Any:
        """Repeat a request with a token after its answer was lost, unless it was done."""
        patience = self.patience()
        while True:
            try:
                result = await self.outcome(token)
                if result is not None:
                    return result
                return await self.change(verb, *arguments, token, safe_to_retry=False)
            except OutcomeUnknown as failure:
                if failure.token:  # the request for the outcome failed as well
                    raise
                await patience.wait(failure)

    async def outcome(self, token: bytes) -> Any:
        """Return the result of the request that carried `token`, or None when it was not done.

        Raises OutcomeUnknown, with the token, when the daemon does not answer.
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
                # Another attempt would fail for the same reason.
                raise LoginRefused(
                    f"{self._path}: {refusal.text}", refusal.remedy, code=refusal.code
                ) from refusal
            self._check(hello)
            if isinstance(self._path, DoorAddress):
                await connection.ask(ActFor, list(self._path.principals))
        except BaseException:
            await connection.close()
            raise
        return connection

    def _check(self, hello: dict[str, Any]) -> None:
        if hello["version"] != frames.VERSION:
            raise NotConnected(
                f"the daemon at {self._path} uses version {hello['version']} of the control "
                f"protocol, and this client uses version {frames.VERSION}",
                "install the same release on both sides",
                code="versions_differ",
            )
        # A token is valid only for the queue manager that stored it.
        if self.queue_manager not in ("", hello["queue_manager"]):
            raise NotConnected(
                f"another queue manager answers at {self._path} now ({hello['name']})",
                "connect again",
                code="other_queue_manager",
            )
        self.queue_manager, self.name = hello["queue_manager"], hello["name"]
        self.token_name = hello.get("token", "")
        self.message_bytes_max = hello.get("message_bytes_max", self.message_bytes_max)
