"""The login of a client: the SASL layer of AMQP (part 5.3), before the engine gets any byte.

header of SASL ──► mechanisms ──► init ──► challenge, response (SCRAM) ──► outcome ──► engine
header of AMQP ──► as with ANONYMOUS, if that is offered
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import proton

from qmd.client.errors import ClientError
from qmd.doors.amqp import sections as parts
from qmd.doors.amqp.scram import Refused, Scram
from qmd.doors.amqp.sections import BadMessage
from qmd.doors.attempts import Attempts, client_of
from qmd.doors.passwords import normalized
from qmd.doors.users import PASSWORD_BYTES_MAX, Users, Verifier

if TYPE_CHECKING:
    from concurrent.futures import Executor

AMQP_HEADER, SASL_HEADER = b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00"
HEADER_BYTES = 8
FRAME_BYTES_MAX = 4096
MECHANISMS, INIT, CHALLENGE, RESPONSE, OUTCOME = 0x40, 0x41, 0x42, 0x43, 0x44
OK, WRONG, LATER = 0, 1, 4
REST_BYTES_MAX = 64 * 1024  # that come before the login is done
EXTERNAL, SCRAM, PLAIN, ANONYMOUS = "EXTERNAL", "SCRAM-SHA-256", "PLAIN", "ANONYMOUS"
_HEAD = struct.Struct(">IBBH")
SASL_FRAME = 1


class TooMany(Refused):
    """The user has failed too often; the client may try again later."""

    def __init__(self, name: str) -> None:
        super().__init__(f"too many wrong passwords of {name}")


class Peer(NamedTuple):
    """The other end of a connection, as the socket and TLS state it."""

    address: str
    is_loopback: bool
    is_encrypted: bool
    certificates: tuple[str, ...] = ()  # principals of its verified certificate
    there: tuple[str, int] | None = None  # the address and the port of its end
    here: tuple[str, int] | None = None  # and of ours


class Rules(NamedTuple):
    """The mechanisms that a door offers."""

    anonymous: bool  # to programs of this computer
    passwords_on_loopback: bool  # PLAIN and SCRAM-SHA-256 also without TLS

    def mechanisms(self, peer: Peer) -> list[str]:
        """Return the mechanisms for a client, the best first."""
        passwords = peer.is_encrypted or (peer.is_loopback and self.passwords_on_loopback)
        return [
            *([EXTERNAL] if peer.certificates else []),
            *([SCRAM, PLAIN] if passwords else []),
            *([ANONYMOUS] if peer.is_loopback and self.anonymous else []),
        ]


class Login:
    """The login of one client."""

    def __init__(
        self,
        peer: Peer,
        rules: Rules,
        users: Users,
        attempts: Attempts,
        executor: Executor,
        write: Callable[[bytes], None],
        done: Callable[[tuple[str, ...], bytes], None],
        failed: Callable[[str], None],
    ) -> None:
        """`done(principals, rest)` gets the bytes that follow the login; `failed` the reason."""
        self._peer = peer
        self._offered = rules.mechanisms(peer)
        self._users = users
        self._attempts = attempts
        self._executor = executor
        self._write = write
        self._done = done
        self._failed = failed
        self._rest = bytearray()
        self._expects = "header"
        self._scram: Scram | None = None
        self._principals: tuple[str, ...] = ()
        self._checking: asyncio.Task[None] | None = None

    def receive(self, data: bytes) -> None:
        """Process bytes of the client."""
        if self._expects == "nothing":
            return
        self._rest += data
        try:
            while self._step():
                pass
            if len(self._rest) > REST_BYTES_MAX:
                raise BadMessage("too many bytes came before the login was done")
        except (BadMessage, Refused, ClientError) as error:
            self._refuse(error)

    def close(self) -> None:
        """End the login: the client has left."""
        self._expects = "nothing"
        if self._checking is not None:
            self._checking.cancel()

    def _step(self) -> bool:
        """Process one header or frame; return whether there may be another one."""
        if self._expects == "nothing":
            return False
        if self._expects in ("header", "engine"):
            return self._header()
        if len(self._rest) < _HEAD.size:
            return False
        size, offset, kind, _ = _HEAD.unpack_from(self._rest)
        if kind != SASL_FRAME or not HEADER_BYTES <= size <= FRAME_BYTES_MAX:
            raise BadMessage("a frame of the login has another type or size")
        if not 2 <= offset <= size // 4:
            raise BadMessage("a frame of the login has a bad offset")
        if len(self._rest) < size or self._expects == "check":
            return False
        frame = bytes(self._rest[4 * offset : size])
        del self._rest[:size]
        self._frame(frame)
        return True

    def _header(self) -> bool:
        if len(self._rest) < HEADER_BYTES:
            if not (AMQP_HEADER.startswith(self._rest) or SASL_HEADER.startswith(self._rest)):
                raise BadMessage("the client does not speak AMQP 1.0")
            return False
        header = bytes(self._rest[:HEADER_BYTES])
        if header == AMQP_HEADER and (self._principals or ANONYMOUS in self._offered):
            principals = self._principals or self._with_address("anonymous")
            rest, self._expects = bytes(self._rest), "nothing"
            self._done(principals, rest)
            return False
        if header != SASL_HEADER or self._principals:
            self._write(SASL_HEADER)  # the protocol that it should speak
            raise BadMessage("the client does not log in" if header == AMQP_HEADER else
                             "the client does not speak AMQP 1.0")  # fmt: skip
        del self._rest[:HEADER_BYTES]
        offered = [proton.symbol(each) for each in self._offered]
        array = proton.Array(proton.UNDESCRIBED, proton.Data.SYMBOL, *offered)
        self._write(SASL_HEADER + _frame(MECHANISMS, [array]))
        self._expects = "init"
        return True

    def _frame(self, frame: bytes) -> None:
        found = parts.decode(frame, described=True)
        code: Any = getattr(found, "descriptor", None)
        fields: Any = getattr(found, "value", None)
        if not isinstance(fields, list):
            raise BadMessage("a frame of the login is not a list")
        if self._expects == "init" and code == INIT:
            mechanism = str(fields[0]) if fields else ""
            self._init(mechanism, _binary(fields, 1))
        elif self._expects == "response" and code == RESPONSE:
            self._response(_binary(fields, 0))
        else:
            raise BadMessage("a frame of the login was not expected")

    def _init(self, mechanism: str, response: bytes) -> None:
        if mechanism not in self._offered:
            raise Refused(f"the mechanism {mechanism[:40]} is not offered")
        match mechanism:
            case "ANONYMOUS":
                self._accept("anonymous")
            case "EXTERNAL":
                self._accept(*self._peer.certificates)
            case "PLAIN":
                self._expects = "check"
                work = self._check_plain(response)
                self._checking = asyncio.get_running_loop().create_task(work)
            case _:
                self._scram = Scram(self._find)
                self._write(_frame(CHALLENGE, [self._scram.first(response)]))
                self._expects = "response"

    def _response(self, response: bytes) -> None:
        assert self._scram is not None
        name = self._scram.name
        self._check_attempts(name)
        try:
            proof = self._scram.final(response)
        except Refused:
            self._attempts.failed(self._client, name)
            raise
        self._attempts.succeeded(self._client, name)
        self._accept(f"sasl:{name}", more=proof)

    def _check_attempts(self, name: str) -> None:
        """Raise TooMany after many wrong logins, also those that have failed beside this one."""
        if not self._attempts.may_try(self._client, name):
            raise TooMany(name)

    @cached_property
    def _client(self) -> str:
        """The name under which failures of the client count: it cannot change it by leaving."""
        return client_of(self._peer.address, self._peer.there, self._peer.here)[0]

    def _find(self, name: str) -> tuple[Verifier, bool]:
        self._check_attempts(name)
        found = self._users.find(name)
        return (self._users.decoy(name), False) if found is None else (found, True)

    async def _check_plain(self, response: bytes) -> None:
        """Check a password.  In a thread: it takes milliseconds."""
        try:
            authorization, name, password = _plain(response)
            verifier, exists = self._find(name)
            loop = asyncio.get_running_loop()
            fits = await loop.run_in_executor(self._executor, verifier.is_of, password)
            self._check_attempts(name)
            if not fits or not exists or authorization not in ("", name):
                self._attempts.failed(self._client, name)
                raise Refused(f"wrong password of {name}")
        except (BadMessage, Refused, ClientError) as error:
            self._refuse(error)
            return
        self._attempts.succeeded(self._client, name)
        if self._expects == "check":
            self._accept(f"sasl:{name}")
            self.receive(b"")

    def _accept(self, *principals: str, more: bytes = b"") -> None:
        self._principals = self._with_address(*principals)
        fields: list[Any] = [proton.ubyte(OK), *([more] if more else [])]
        self._write(_frame(OUTCOME, fields))
        self._expects = "engine"

    def _with_address(self, *principals: str) -> tuple[str, ...]:
        more = [each for each in self._peer.certificates if each not in principals]
        return (*principals, *more, f"host:{self._peer.address}")

    def _refuse(self, error: Exception) -> None:
        if self._expects == "nothing":
            return
        tells = self._expects in ("init", "response", "check")
        self._expects = "nothing"
        if tells:
            code = LATER if isinstance(error, TooMany) else WRONG
            self._write(_frame(OUTCOME, [proton.ubyte(code)]))
        self._failed(str(error))


def _plain(response: bytes) -> tuple[str, str, bytes]:
    """Return the identity to act as, the user and the password.  Raises BadMessage."""
    try:
        authorization, name, password = response.decode().split("\0")
    except ValueError:
        raise BadMessage("the response is not one of PLAIN") from None
    raw = normalized(password)
    if not name or len(raw) > PASSWORD_BYTES_MAX:
        raise BadMessage("the response is not one of PLAIN")
    return authorization, name, raw


def _binary(fields: list[Any], at: int) -> bytes:
    value = fields[at] if len(fields) > at else b""
    return bytes(value) if isinstance(value, bytes | memoryview) else b""


def _frame(code: int, fields: list[Any]) -> bytes:
    body = parts.encode(code, fields)
    return _HEAD.pack(_HEAD.size + len(body), 2, SASL_FRAME, 0) + body
