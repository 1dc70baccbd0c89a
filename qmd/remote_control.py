"""The control protocol from elsewhere: TCP with TLS, and a token that says what may be asked.

The frames are those of the control socket.  Before its login a connection may say nothing else,
little, and not for long; after it, every request is looked at: its verb needs a scope, and all
queues that it names must be the token's.  docs/decisions/0020, docs/remote.md.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast, get_args

import structlog

from protocol.direct_name import DirectName, queue_key
from protocol.errors import InvalidName
from protocol.format_name import FormatName, MultipleName, parse_destination
from protocol.identifiers import guid_bytes
from qmd import directory_frames, frames, operator_frames, overview, pipeline_frames
from qmd.control import ControlConnection, ControlServer
from qmd.frames import FrameBuffer
from qmd.refusal import Refusal
from qmd.remote_tokens import Grant, TokenFile, TokenFileError

if TYPE_CHECKING:
    from qmd.manager import QueueManager
    from qmd.settings import RemoteSettings

log = structlog.get_logger()

LOGIN_BYTES_MAX = 4096  # of what comes before the login
LOOPBACK = ("127.0.0.1", "::1")
FAILURE_DELAY_S = 0.5  # before a wrong token is answered
BUCKET_S = 5.0  # so long a client may have been quiet, and ask all at once then
REVOKED_LOOK_S = 1.0

READ, WRITE, ADMIN = "read", "write", "admin"
ANY = ""  # any token may

_SCOPES: dict[type, str] = {
    **dict.fromkeys((frames.Hello, frames.Outcome), ANY),
    **dict.fromkeys(
        (frames.Begin, frames.Commit, frames.Abort, frames.Settle, frames.ListTransactions), ANY
    ),
    **dict.fromkeys(
        (
            *(frames.Take, frames.TakeChosen, frames.Look, frames.Remove, frames.Reject),
            *(frames.GiveBack, frames.Peek, frames.OpenExclusive, frames.CloseExclusive),
            *(
                frames.DeadLetters,
                operator_frames.ListQueues,
                operator_frames.ShowQueue,
                operator_frames.Status,
            ),
            *(
                operator_frames.Why,
                operator_frames.Events,
                operator_frames.ListOutgoing,
                operator_frames.ShowOutgoing,
            ),
            *(
                operator_frames.ListAwaiting,
                operator_frames.ListSequences,
                operator_frames.ListSessions,
            ),
            *(pipeline_frames.OpenReader, pipeline_frames.Reserve, pipeline_frames.ReadRange),
            *(pipeline_frames.SplitRange, pipeline_frames.Consume, pipeline_frames.ListReaders),
            *(directory_frames.DirectoryStatus, directory_frames.DirectoryLookup),
            *(directory_frames.ShowList, directory_frames.ExpandList, directory_frames.ListLists),
            *(directory_frames.ListAliases, directory_frames.ExplainName),
        ),
        READ,
    ),
    **dict.fromkeys(
        (
            *(frames.Send, pipeline_frames.Stage, pipeline_frames.Publish),
            *(pipeline_frames.DiscardStages, pipeline_frames.ListStages),
        ),
        WRITE,
    ),
}
#: What tells or does nothing beyond what its token was let do before.
_NAMELESS = (
    *(frames.Hello, frames.Outcome, frames.Begin, frames.Commit, frames.Abort),
    *(operator_frames.Status, pipeline_frames.Publish, pipeline_frames.DiscardStages),
)
#: Names in these are of lists, or of whatever else the directory has: no token is for some of them.
_OF_THE_DIRECTORY = get_args(directory_frames.DirectoryRequest)


class RemoteServer(ControlServer):
    """Listens on TCP."""

    def __init__(self, manager: QueueManager, settings: RemoteSettings) -> None:
        super().__init__(manager)
        self.settings = settings
        self.tokens = TokenFile(settings.tokens)
        self.address: tuple[str, int] = (settings.address, settings.port)

    async def listen(self) -> None:
        """Raises OSError, ssl.SSLError, TokenFileError; Refusal where nothing would be secret."""
        context = self._context()
        self.tokens.grants()
        self._server = await asyncio.get_running_loop().create_server(
            self._connected,
            self.settings.address,
            self.settings.port,
            ssl=context,
            ssl_handshake_timeout=self.settings.login_timeout_s if context else None,
        )
        self.address = self._server.sockets[0].getsockname()[:2]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()

    def _context(self) -> ssl.SSLContext | None:
        settings = self.settings
        if settings.plain_on_loopback:
            if settings.address not in LOOPBACK:
                raise Refusal(
                    "remote_not_secret",
                    f"the remote control protocol would be without TLS at {settings.address}",
                    f"Without TLS it may listen at {' or '.join(LOOPBACK)} only: see"
                    " plain_on_loopback in the section [remote].",
                )
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(settings.certificate, settings.key)
        if settings.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(settings.client_ca)
        return context

    def _connected(self) -> ControlConnection:
        return RemoteConnection(self._manager, self)


class RemoteConnection(ControlConnection):
    """One client from elsewhere."""

    def __init__(self, manager: QueueManager, server: RemoteServer) -> None:
        super().__init__(manager, server)
        self._remote = server
        self._buffer = FrameBuffer(LOGIN_BYTES_MAX)
        self._grant: Grant | None = None
        self._logging_in = False
        self._host = ""
        self._limit: asyncio.TimerHandle | None = None
        self._allowance = self._most = server.settings.requests_per_second * BUCKET_S
        self._counted_at = self._looked_at = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername") or ("?", 0)
        self._host = str(peer[0])
        if len(self._server.connections) >= self._remote.settings.connections_max:
            self.manager.log_limited("too_many_remote_clients", self._host, address=self._host)
            cast(asyncio.Transport, transport).abort()
            return
        super().connection_made(transport)
        self.reader.who = f"a client at {self._host}"
        self._limit = self._loop.call_later(
            self._remote.settings.login_timeout_s, self._took_too_long
        )

    def connection_lost(self, exc: Exception | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)

    def _took_too_long(self) -> None:
        if self._grant is None and self._transport is not None:
            self.manager.log_limited("remote_login_too_slow", self._host, address=self._host)
            self._transport.abort()

    def _handle(self, request: frames.Request) -> None:
        try:
            if self._grant is None:
                self._log_in(request)
                return
            self._check(request, self._grant)
        except Refusal as refusal:
            self._refuse(request.number, refusal)
            return
        super()._handle(request)

    # The login.

    def _log_in(self, request: frames.Request) -> None:
        if not isinstance(request, frames.Login) or self._logging_in:
            raise Refusal(
                "login_first",
                "nothing may be asked for before the login",
                "Use the client library, or `qmd --host`.",
            )
        if request.version != frames.VERSION:
            raise Refusal(
                "versions_differ",
                f"the client speaks version {request.version} of the control protocol, this queue"
                f" manager version {frames.VERSION}",
                "Use client and daemon of the same release.",
            )
        try:
            grant = self._remote.tokens.find(request.token)
        except TokenFileError as error:
            log.error("token_file_broken", reason=str(error))
            grant = None
        if grant is None:
            self._logging_in = True  # another guess takes another connection
            self.manager.log_limited("remote_token_refused", self._host, address=self._host)
            self._loop.call_later(FAILURE_DELAY_S, self._turn_away, request.number)
            return
        self._grant = grant
        if self._limit is not None:
            self._limit.cancel()
        self._buffer.set_limit(frames.FRAME_BYTES_MAX)
        self.reader.who = f"{grant.name} at {self._host}"
        log.info("remote_client", token=grant.name, address=self._host)
        self.done(
            request.number,
            {**overview.hello(self.manager), "scopes": sorted(grant.scopes), "token": grant.name},
        )

    def _turn_away(self, number: int) -> None:
        if self._transport is not None:
            self._refuse(
                number,
                Refusal(
                    "token_refused",
                    f"{self.manager.name} does not know this token",
                    "It was revoked, or is another host's: see `qmd remote token list` there.",
                ),
            )
            self._loop.call_soon(self.close)

    # What may be asked.

    def _check(self, request: frames.Request, grant: Grant) -> None:
        now = self._loop.time()
        if now - self._looked_at > REVOKED_LOOK_S:
            self._looked_at = now
            self._look_again(grant)
        self._count(now)
        scope = _SCOPES.get(type(request), ADMIN)
        if scope and not grant.may(scope):
            raise Refusal(
                "scope_missing",
                f"token {grant.name} is for {', '.join(sorted(grant.scopes))}, and"
                f" {_verb(request)} needs {scope}",
                "Use another token, or have one made: qmd remote token create",
            )
        if grant.everywhere or isinstance(request, _NAMELESS):
            return
        names = [] if isinstance(request, _OF_THE_DIRECTORY) else list(_queues(request))
        for name in names:
            if not all(map(grant.reaches, self._keys(name))):
                raise Refusal(
                    "queue_not_granted",
                    f"token {grant.name} is not for queue {name}",
                    f"It is for {', '.join(grant.queues)}. Use another one, or have one made.",
                )
        if not names:
            raise Refusal(
                "queue_not_granted",
                f"token {grant.name} is for {', '.join(grant.queues)}, and {_verb(request)} is"
                " about all queues",
                "Use a token for all queues.",
            )

    def _look_again(self, grant: Grant) -> None:
        try:
            if self._remote.tokens.still_has(grant):
                return
        except TokenFileError as error:
            log.error("token_file_broken", reason=str(error))
        self._loop.call_soon(self.close)
        raise Refusal("token_refused", f"token {grant.name} was revoked", "Use another one.")

    def _count(self, now: float) -> None:
        """A bucket that fills again: as many requests a second as are allowed, some at once."""
        rate = self._remote.settings.requests_per_second
        self._allowance = min(self._most, self._allowance + (now - self._counted_at) * rate)
        self._counted_at = now
        if self._allowance < 1:
            raise Refusal(
                "too_many_requests",
                f"more than {rate} requests a second came on this connection",
                "Ask for more at once, or wait between requests.",
            )
        self._allowance -= 1

    def _keys(self, text: str) -> Iterator[str]:
        """The names by which the queues of a request are granted, whatever their spelling."""
        try:
            guid = guid_bytes(text)
        except InvalidName:
            pass
        else:
            queue = self.manager.routes.queue_by_guid(guid)
            yield queue.key if queue is not None else text.casefold()
            return
        try:
            name = parse_destination(text, local_host=".")
        except InvalidName:
            yield text.casefold()  # it will be refused
            return
        yield from self._keys_of(name)

    def _keys_of(self, name: FormatName) -> Iterator[str]:
        if isinstance(name, MultipleName):
            for element in name.elements:
                yield from self._keys_of(element)
            return
        queue = self.manager.routes.find_here(name)
        if queue is not None:
            yield queue.key
        elif isinstance(name, DirectName) and self.manager.routes.is_local(name):
            yield queue_key(name) or str(name).casefold()
        else:
            yield str(name).casefold()


def _queues(request: frames.Request) -> Iterable[str]:
    """All queues that a request names, except for those that only its packets name."""
    for field in ("queue", "queues", "name", "source", "target", "destination", "to"):
        value: Any = getattr(request, field, None)
        if isinstance(value, str) and value:
            yield value
        elif isinstance(value, list):
            yield from value
    for messages in (getattr(request, "messages", None), getattr(request, "rows", None)):
        for message in messages or ():
            if isinstance(message, frames.NewMessage):
                yield message.destination
                if message.dead_letter_queue:
                    yield message.dead_letter_queue
    if isinstance(request, pipeline_frames.Consume):
        yield from request.ends


def _verb(request: frames.Request) -> str:
    return str(type(request).__struct_config__.tag)
