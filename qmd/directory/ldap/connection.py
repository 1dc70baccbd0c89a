"""Connection to one LDAP server: opened, secured, bound, and shared by concurrent operations.

`LdapConnection.open` returns with a bound connection, or raises: LdapAway if the server is
unavailable (with the step that failed), LdapRejected if it refuses the access. Every wait has a
limit: a server may become silent at any point, which costs its time-out.

The server is not trusted: there are limits for a message (`messages.py`), for the entries and bytes
of one operation and for the bytes of the connection, and only answers to requests are accepted.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from sansldap import LDAPFilter

from qmd.directory.ldap import messages as ldap_messages
from qmd.directory.ldap.access import (
    PASSWORD_VARIABLE,
    Access,
    LdapAway,
    LdapError,
    LdapRefused,
    LdapRejected,
    Mechanism,
    Security,
    Server,
    describe,
    error_text,
    read_password,
    tls_context,
)
from qmd.directory.ldap.messages import (
    Answer,
    Bound,
    Change,
    Done,
    Entry,
    Extended,
    Frames,
    LdapFault,
    Message,
    Reference,
    ResultCode,
    Scope,
)

OPERATION_ENTRIES_MAX: Final = 5_000  # pages have 500
OPERATION_BYTES_MAX: Final = 16 * 1024 * 1024
CONNECTION_BYTES_MAX: Final = 64 * 1024 * 1024  # of answers that are not complete
OPERATIONS_MAX: Final = 128  # at once; more wait
CLOSE_S_MAX: Final = 1.0
BIND_STEPS_MAX: Final = 10
SEALED_BYTES_MAX: Final = ldap_messages.MESSAGE_BYTES_MAX + 64 * 1024


class Layer(Protocol):
    """Protection by a SASL mechanism of every byte after the bind. RFC 4422 3.7"""

    def wrap(self, data: bytes) -> bytes: ...

    def unwrap(self, data: bytes) -> bytes: ...


@dataclass(slots=True)
class _Operation:
    """A request that is not answered yet."""

    answered: asyncio.Future[Message]
    entries: list[Entry] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a search result; `cookie` requests the next part, b"" after the last."""

    entries: list[Entry]
    cookie: bytes


class LdapConnection(asyncio.Protocol):
    """Connection that is opened once, and then used by concurrent callers."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.doing = "connecting"  # for people, during the opening
        self.received_at = loop.time()  # when the server last sent anything
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._frames = Frames()
        self._operations: dict[int, _Operation] = {}
        self._last_number = 0
        self._unfinished_bytes = 0
        self._slots = asyncio.Semaphore(OPERATIONS_MAX)
        self._layer: Layer | None = None
        self._sealed = bytearray()
        self._awaits_tls = False
        self._silent = False  # no data is allowed before TLS begins
        self.gone = ""  # why it can no longer be used
        self.lost = asyncio.Event()  # set when `gone` is set
        self._closed = asyncio.Event()

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Uvloop's class is no asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.received_at = self._loop.time()
        try:
            if self._silent:
                raise LdapFault("it sent more before the TLS handshake had begun")
            if self._layer is not None:
                data = self._unseal(data)
            for frame in self._frames.feed(data):
                self._take(ldap_messages.read(frame))
        except LdapFault as fault:
            self.abort(f"the server violates the protocol: {fault}")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        reason = f" ({error_text(error)})" if error is not None else ""
        self._end(f"the server closed the connection{reason}")
        self._closed.set()

    def _unseal(self, data: bytes) -> bytes:
        """Decrypt data of the SASL layer: four bytes of length, then a token. RFC 4422 3.7"""
        assert self._layer is not None
        self._sealed += data
        plain = bytearray()
        start = 0
        while len(self._sealed) - start >= 4:
            size = int.from_bytes(self._sealed[start : start + 4], "big")
            if size > SEALED_BYTES_MAX:
                raise LdapFault(f"a sealed buffer of {size} bytes")
            end = start + 4 + size
            if len(self._sealed) < end:
                break
            plain += self._layer.unwrap(bytes(self._sealed[start + 4 : end]))
            start = end
        del self._sealed[:start]
        return bytes(plain)

    def _take(self, message: Message) -> None:
        answer = message.answer
        if message.id == 0:
            words = ""
            if isinstance(answer, Extended):
                words = f": {describe(answer.result)}"
            raise LdapFault(f"it ends the connection{words}")
        operation = self._operations.get(message.id)
        if operation is None:
            if message.id > self._last_number:
                raise LdapFault("it answers a request that was never sent")
            return  # a late answer to an abandoned operation
        operation.size_bytes += message.size_bytes
        self._unfinished_bytes += message.size_bytes
        if operation.size_bytes > OPERATION_BYTES_MAX:
            raise LdapFault(f"an answer of more than {OPERATION_BYTES_MAX} bytes")
        if self._unfinished_bytes > CONNECTION_BYTES_MAX:
            raise LdapFault(f"answers of more than {CONNECTION_BYTES_MAX} bytes in all")
        if isinstance(answer, Entry):
            if len(operation.entries) >= OPERATION_ENTRIES_MAX:
                raise LdapFault(f"a page of more than {OPERATION_ENTRIES_MAX} entries")
            operation.entries.append(answer)
        elif not isinstance(answer, Reference) and not operation.answered.done():
            self._silent = self._awaits_tls
            operation.answered.set_result(message)

    def _end(self, why: str) -> None:
        self.gone = self.gone or why
        self.lost.set()
        for operation in self._operations.values():
            if not operation.answered.done():
                operation.answered.set_exception(LdapAway(self.gone, server=self._name))
                # Marks the exception as retrieved, in case no caller is left.
                operation.answered.exception()

    # Methods for callers.

    @property
    def _name(self) -> str:
        return str(self.server)

    def abort(self, why: str) -> None:
        """Close the connection at once; pending operations fail with the reason."""
        self._end(why)
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Unbind, and wait briefly for the connection to close."""
        if self._transport is None:
            return
        if not self.gone:
            self._write(ldap_messages.unbind(self._next_number()))
            self._end("the connection was closed by this computer")
            self._transport.close()
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._closed.wait()
        except TimeoutError:
            self._transport.abort()
            await asyncio.sleep(0)

    async def search(
        self,
        base: str,
        scope: Scope,
        wanted: LDAPFilter,
        attributes: Sequence[str],
        *,
        page_size: int = 0,
        cookie: bytes = b"",
        time_limit_s: int = 0,
    ) -> Page:
        """Return one page of a search result. Raises LdapAway and LdapRefused."""
        number = self._next_number()
        request = ldap_messages.search(
            *(number, base, scope, wanted, attributes),
            page_size=page_size,
            cookie=cookie,
            time_limit_s=time_limit_s,
        )
        message, entries = await self._ask(number, request)
        self._succeeded(message.answer, f"searching below {base or 'the root'}")
        return Page(entries, message.cookie or b"")

    async def add(self, dn: str, attributes: Mapping[str, Sequence[bytes]]) -> None:
        number = self._next_number()
        message, _ = await self._ask(number, ldap_messages.add(number, dn, attributes))
        self._succeeded(message.answer, f"adding {dn}")

    async def modify(self, dn: str, changes: Sequence[tuple[Change, str, Sequence[bytes]]]) -> None:
        number = self._next_number()
        message, _ = await self._ask(number, ldap_messages.modify(number, dn, changes))
        self._succeeded(message.answer, f"changing {dn}")

    async def delete(self, dn: str) -> None:
        number = self._next_number()
        message, _ = await self._ask(number, ldap_messages.delete(number, dn))
        self._succeeded(message.answer, f"deleting {dn}")

    def _succeeded(self, answer: Answer, doing: str) -> None:
        if not isinstance(answer, Done):
            self.abort("the server sent another kind of answer than was requested")
            raise LdapAway(self.gone, server=self._name)
        if answer.result.code != ResultCode.SUCCESS:
            raise LdapRefused(doing, answer.result, server=self._name)

    async def _ask(self, number: int, request: bytes) -> tuple[Message, list[Entry]]:
        """Send a request and wait for the end of its answer; the caller limits the time."""
        async with self._slots:
            if self.gone:
                raise LdapAway(self.gone, server=self._name)
            operation = _Operation(self._loop.create_future())
            self._operations[number] = operation
            try:
                self._write(request)
                return await operation.answered, operation.entries
            except asyncio.CancelledError:
                if not self.gone:
                    self._write(ldap_messages.abandon(self._next_number(), number))
                raise
            finally:
                del self._operations[number]
                self._unfinished_bytes -= operation.size_bytes

    def _next_number(self) -> int:
        if self._last_number >= ldap_messages.MESSAGE_ID_MAX:
            self.abort("the connection has reached its maximum age")
            raise LdapAway(self.gone, server=self._name)
        self._last_number += 1
        return self._last_number

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        if self._layer is not None:
            data = self._layer.wrap(data)
            data = len(data).to_bytes(4, "big") + data
        self._transport.write(data)

    # Opening.

    async def open(self, access: Access) -> None:
        """Connect, secure and bind. Raises LdapAway or LdapRejected, within the time-out."""
        try:
            async with asyncio.timeout(access.connect_timeout_s):
                await self._open(access)
        except TimeoutError as error:
            text = f"no answer within {access.connect_timeout_s:g} s while {self.doing}"
            raise self._failed(LdapAway(text, server=self._name)) from error
        except LdapFault as fault:
            text = f"the server violates the protocol while {self.doing}: {fault}"
            raise self._failed(LdapAway(text, server=self._name)) from fault
        except LdapError as error:
            raise self._failed(error) from error.__cause__
        except OSError as error:  # including ssl.SSLError
            text = f"{error_text(error)}, while {self.doing}"
            raise self._failed(LdapAway(text, server=self._name)) from error
        except BaseException:
            self.abort("it was given up")
            raise

    def _failed(self, error: LdapError) -> LdapError:
        self.abort(str(error))
        return error

    async def _open(self, access: Access) -> None:
        context: ssl.SSLContext | None = None
        if self.server.security is not Security.NONE:
            context = await asyncio.to_thread(tls_context, access, self._name)
        self.doing = "connecting"
        await self._loop.create_connection(lambda: self, self.server.host, self.server.port)
        if self.server.security is Security.START_TLS:
            self.doing = "asking for TLS"
            self._awaits_tls = True
            number = self._next_number()
            message, _ = await self._ask(number, ldap_messages.start_tls(number))
            answer = message.answer
            if not isinstance(answer, Extended):
                raise LdapFault("the answer to StartTLS is not valid")
            if answer.result.code != ResultCode.SUCCESS:
                text = f"the server does not offer TLS: {describe(answer.result)}"
                raise LdapRejected(text, server=self._name)
            if self._frames:
                raise LdapFault("it sent more before the TLS handshake had begun")
        if context is not None:
            await self._start_tls(context, access)
        await self._bind(access, protected=context is not None)
        self.doing = ""

    async def _start_tls(self, context: ssl.SSLContext, access: Access) -> None:
        self.doing = "in the TLS handshake"
        assert self._transport is not None
        name = access.server_name or self.server.host
        self._awaits_tls = self._silent = False  # from here on TLS data arrives
        try:
            transport = await self._loop.start_tls(
                self._transport,
                self,
                context,
                server_hostname=name,
                ssl_handshake_timeout=access.connect_timeout_s + 1,  # our own time-out comes first
            )
        except ssl.SSLCertVerificationError as error:
            where = f"CA file {access.ca_file}" if access.ca_file else "the system's CAs"
            text = (
                f"the server's certificate is not accepted: {error.verify_message}"
                f" (name {name}, {where})"
            )
            raise LdapRejected(text, server=self._name) from error
        if transport is None:
            raise ConnectionResetError("the connection was lost in the TLS handshake")
        self._transport = transport

    async def _bind(self, access: Access, *, protected: bool) -> None:
        self.doing = f"binding as {access.user}" if access.user else "binding"
        if access.mechanism is Mechanism.SIMPLE:
            if not protected and not access.plain_allowed:
                text = (
                    "a password would cross the network unencrypted: use ldaps:// or StartTLS,"
                    " or bind"
                    ' by "negotiate"'
                )
                raise LdapRejected(text, server=self._name)
            password = await asyncio.to_thread(read_password, access, self._name)
            number = self._next_number()
            request = ldap_messages.bind_simple(number, access.user, password)
            message, _ = await self._ask(number, request)
            self._bound(message, access)
        elif access.mechanism is Mechanism.EXTERNAL:
            number = self._next_number()
            message, _ = await self._ask(number, ldap_messages.bind_sasl(number, "EXTERNAL", b""))
            self._bound(message, access)
        else:
            await self._negotiate(access, protected=protected)

    async def _negotiate(self, access: Access, *, protected: bool) -> None:
        """Bind by GSS-SPNEGO, step by step. [MS-ADTS] 5.1.1.1.2"""
        # A separate package, imported only if it is used.
        from qmd.directory.ldap.negotiate import Negotiation, NegotiationFailed

        assert self._transport is not None
        password = b""
        if access.password_file is not None or PASSWORD_VARIABLE in os.environ:
            password = await asyncio.to_thread(read_password, access, self._name)
        certificate: bytes | None = None
        if protected:
            certificate = self._transport.get_extra_info("ssl_object").getpeercert(True)
        host = access.server_name or self.server.host
        try:
            # Kerberos queries its KDC here, with its own time-outs: not in the event loop.
            negotiation = await asyncio.to_thread(
                Negotiation, access.user, password, host, certificate, protected=protected
            )
            token: bytes | None = None
            for _ in range(BIND_STEPS_MAX):
                token = await asyncio.to_thread(negotiation.step, token)
                number = self._next_number()
                request = ldap_messages.bind_sasl(number, "GSS-SPNEGO", token)
                message, _ = await self._ask(number, request)
                answer = message.answer
                if not isinstance(answer, Bound):
                    raise LdapFault("the answer to a bind is not valid")
                token = answer.credentials
                if answer.result.code == ResultCode.SUCCESS:
                    await asyncio.to_thread(negotiation.finish, token)
                    break
                if answer.result.code != ResultCode.SASL_BIND_IN_PROGRESS:
                    self._bound(message, access)
            else:
                raise LdapFault(f"a bind of more than {BIND_STEPS_MAX} steps")
        except NegotiationFailed as error:
            raise LdapRejected(f"binding as {access.user}: {error}", server=self._name) from error
        if not protected:
            if self._frames:
                raise LdapFault("it sent more before its protection had begun")
            self._layer = negotiation.layer()

    def _bound(self, message: Message, access: Access) -> None:
        answer = message.answer
        if not isinstance(answer, Bound):
            raise LdapFault("the answer to a bind is not valid")
        code = answer.result.code
        if code == ResultCode.SUCCESS:
            return
        account = f"as {access.user}" if access.user else f"by {access.mechanism.value}"
        text = f"the server refuses the bind {account}: {describe(answer.result)}"
        if code in (ResultCode.BUSY, ResultCode.UNAVAILABLE):
            raise LdapAway(text, server=self._name)
        raise LdapRejected(text, server=self._name)
