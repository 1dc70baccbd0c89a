"""TLS channel: one connection over TLS 1.3, as the transport of a session's protocol.

OpenSSL does the work on bytes in memory; this module moves them between it and the TCP transport.
Other than the TLS of the event loop it makes each step of an untrusted connection's handshake, the
expensive part, in a turn of the fair scheduler, has no buffer of its own per silent connection,
and lets the certificate be judged before the handshake ends: the peer gets TLS's alert.

    TCP transport ──bytes──► TlsChannel ──handshake done──► `ready` makes the protocol above it
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from cryptography import x509
from OpenSSL import SSL, crypto

from qmd.runtime.fair_scheduler import Class
from qmd.tls.certificate import Certificate, key_digest, read_certificate
from qmd.tls.errors import BadCertificate, TlsFailed
from qmd.tls.record_feed import RecordFeed

if TYPE_CHECKING:
    from qmd.runtime.fair_scheduler import FairScheduler
    from qmd.tls.credentials import Credentials

BUFFER_BYTES = 64 * 1024
HANDSHAKE_BYTES_MAX = 64 * 1024  # of the peer: a chain of certificates has a few kilobytes
RECORD_BYTES_MAX = 16 * 1024
READS_MAX = 8  # of records in one turn: a read of a full buffer has five
STEP_S = 0.000_5  # assumed processor time of one step of a handshake that this side began
LINGER_S = 5.0  # for an alert to leave, before the connection is aborted

# Errors of OpenSSL about an authority that is not known here: by themselves they decide nothing.
_UNKNOWN_AUTHORITY = {2, 18, 19, 20, 21, 27}
_NO_REVOCATION_LIST = 3
_TEXTS = {
    9: "its certificate is not valid yet (check the clocks)",
    10: "its certificate has expired",
    11: "the revocation list of its authority is not valid yet",
    12: "the revocation list of its authority has expired",
    _NO_REVOCATION_LIST: "there is no revocation list of its authority",
    23: "its certificate is revoked",
    26: "its certificate is not for this purpose",
}
CHANGES_KEYS = "it changes its keys too often, or sends empty records"
REFUSED_THERE = "it has refused the certificate of this host"
_ALERTS = {
    "certificate expired": "its certificate has expired there",
    "certificate revoked": "it is revoked there",
    "unknown ca": "its authority, or its key, is not known there",
}


class Proof(NamedTuple):
    """A certificate with a key that the other end has.

    `authority` names the key of the authority that vouches for it, or is "" if none does.
    """

    certificate: Certificate
    authority: str
    shown: x509.Certificate
    chain: tuple[x509.Certificate, ...] = ()  # those that the other end has sent with it

    @property
    def by_authority(self) -> bool:
        return bool(self.authority)


class Above(Protocol):
    """The protocol of a session: `PeerConnection`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


class Owner(Protocol):
    """The listener or the dialer of a channel."""

    def began(self, channel: TlsChannel) -> None:
        """Take a channel of which the TCP connection is made; its `host` is known."""

    def judge(self, channel: TlsChannel, proof: Proof) -> str:
        """Return why the certificate is refused, or ""."""

    def ready(self, channel: TlsChannel) -> Above | None:
        """Return the protocol above a channel after its handshake; None to abort it."""

    def failed(self, channel: TlsChannel, reason: str) -> None:
        """Handle the end of a channel before `ready`; it is called once."""


# All channels read into the same memory: each read is passed to OpenSSL before the next one.
_buffer = memoryview(bytearray(BUFFER_BYTES))


class TlsChannel(asyncio.Transport, asyncio.BufferedProtocol):
    """The protocol of a TCP connection, and the transport of the protocol above it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        credentials: Credentials,
        turns: FairScheduler,
        owner: Owner,
        *,
        is_dialled: bool,
        timeout_s: float,
    ) -> None:
        super().__init__()
        self._loop = loop
        self._has_authorities = credentials.has_authorities
        self._turns = turns
        self._owner: Owner | None = owner  # until the handshake has ended
        self._is_dialled = is_dialled
        self._timeout_s = timeout_s
        self._tls = SSL.Connection(credentials.context, None)
        self._tls.set_app_data(self)
        if is_dialled:
            self._tls.set_connect_state()
        else:
            self._tls.set_accept_state()
        self._tcp: asyncio.Transport | None = None
        self._above: Above | None = None
        self._limit: asyncio.TimerHandle | None = None
        self._handshake_bytes = 0
        self._feed = RecordFeed()
        self._waits_for_turn = False
        self._is_paused = False  # by the protocol above
        self._tcp_is_paused = False
        self._is_closing = False
        self._fault = ""  # why the connection ends, if TLS has ended it
        self._unknown_authority = False
        self._has_refused = False
        self._anchor = ""
        self.host = ""
        self.proof: Proof | None = None

    # The protocol of the TCP connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = tcp = cast(asyncio.Transport, transport)
        peer = tcp.get_extra_info("peername")
        self.host = str(peer[0]).removeprefix("::ffff:") if peer else ""
        owner = self._owner
        if owner is not None:
            owner.began(self)
        self._limit = self._loop.call_later(self._timeout_s, self._took_too_long)
        if self._is_dialled:
            self._shake()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._fault or self._is_closing:
            return
        self._feed.add(_buffer[:nbytes])
        if self._above is not None:
            self._read()
        else:
            self._handshake_received(nbytes)
        self._feed.keep()

    def _handshake_received(self, nbytes: int) -> None:
        self._handshake_bytes += nbytes
        if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
            self.refuse("its handshake is too long")
        elif self._is_dialled:
            self._turns.spend(STEP_S)
            self._shake()
        elif not self._waits_for_turn:
            self._waits_for_turn = True
            self._regulate()
            self._turns.wait(self, Class.UNTRUSTED)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._above is not None:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        if self._above is not None:
            self._above.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._tls.set_app_data(None)  # it would keep both in memory
        if self._limit is not None:
            self._limit.cancel()
        above, self._above = self._above, None
        if above is not None:
            above.connection_lost(TlsFailed(self._fault) if self._fault else exc)
        else:
            self._end_handshake(self._fault or "the connection was closed during the handshake")

    # The member of the fair scheduler.

    def take_turn(self, _: float, __: int) -> None:
        """Make a step of the handshake, or read on."""
        self._waits_for_turn = False
        if self._fault or self._is_closing:
            return
        if self._above is None:
            self._shake()
        else:
            self._read()
        self._regulate()

    # The handshake.

    @property
    def has_judged(self) -> bool:
        """Whether one end has refused the certificate of the other."""
        return self._has_refused or self._fault.startswith(REFUSED_THERE)

    def verify(self, shown: crypto.X509, error: int, depth: int, *, ok: bool) -> bool:
        """Judge the certificates of the peer, as OpenSSL shows them; False ends the handshake."""
        try:
            is_good = self._judge(shown, error, depth, ok=ok)
        except Exception as fault:  # of cryptography, about a certificate that OpenSSL accepts
            self._fault = f"its certificate cannot be read: {fault}"
            is_good = False
        self._has_refused = not is_good
        return is_good

    def _judge(self, shown: crypto.X509, error: int, depth: int, *, ok: bool) -> bool:
        if not ok:
            if error in _UNKNOWN_AUTHORITY:
                self._unknown_authority = True
                return True
            if error == _NO_REVOCATION_LIST and self._unknown_authority:
                return True
            self._fault = (
                _TEXTS.get(error) or f"its certificate is wrong (error {error} of OpenSSL)"
            )
            return False
        if depth and not self._anchor:  # OpenSSL begins with the authority that it trusts
            self._anchor = key_digest(shown.to_cryptography().public_key())[:16].hex()
        if depth or self._owner is None:
            return True
        try:
            found = shown.to_cryptography()
            certificate = read_certificate(found)
        except BadCertificate as bad:
            self._fault = f"its certificate is wrong: {bad}"
            return False
        is_issued = self._has_authorities and not self._unknown_authority
        authority = (self._anchor or certificate.fingerprint[:32]) if is_issued else ""
        self.proof = Proof(certificate, authority, found)
        self._fault = self._owner.judge(self, self.proof)
        return not self._fault

    def _shake(self) -> None:
        """Make the next step of the handshake."""
        try:
            self._shake_with_all()
        except SSL.WantReadError:
            self._write_out()
            return
        except (SSL.Error, SSL.SysCallError) as error:
            self.refuse(self._fault or _reason(error))
            return
        self._feed.handshake_ended()
        self._write_out()
        owner = self._owner
        if owner is None or self.proof is None:
            self.refuse("it has shown no certificate")
            return
        try:
            chain = self._tls.get_peer_cert_chain(as_cryptography=True) or ()
        except Exception as fault:  # of cryptography, about a certificate that OpenSSL accepts
            self.refuse(f"the certificates with its own cannot be read: {fault}")
            return
        self.proof = self.proof._replace(chain=tuple(chain))
        if self._limit is not None:
            self._limit.cancel()
        above = owner.ready(self)
        self._owner = None
        if above is None:
            self.abort()
            return
        self._above = above
        above.connection_made(self)
        self._read()  # the peer may have sent data with the end of its handshake

    def _shake_with_all(self) -> None:
        """Make the steps for which the bytes have come.  Raises SSL.WantReadError, SSL.Error."""
        while True:
            try:
                self._tls.do_handshake()
            except SSL.WantReadError:
                data = self._feed.take()
                if not data:
                    raise
                self._tls.bio_write(data)
            else:
                return

    def refuse(self, reason: str) -> None:
        """End a connection of which the handshake has not ended."""
        self._fault = reason
        self._write_out()  # the alert
        self._end_handshake(reason)
        self._close_tcp()

    def _end_handshake(self, reason: str) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.failed(self, reason)

    def _took_too_long(self) -> None:
        if self._above is None and not self._is_closing:
            self._fault = f"its handshake took more than {self._timeout_s:g} s"
            self._end_handshake(self._fault)
            self.abort()

    # Reading.

    def _read(self) -> None:
        """Pass decrypted data to the protocol above, up to the limit of a turn."""
        for _ in range(READS_MAX):
            if self._is_paused or self._is_closing or self._above is None:
                break
            space = self._above.get_buffer(-1)
            try:
                count = self._receive(space)
            except SSL.WantReadError:
                break
            except SSL.ZeroReturnError:
                self._close_tcp()
                break
            except (SSL.Error, SSL.SysCallError) as error:
                self._fault = _reason(error)
                self._write_out()
                self._close_tcp()
                break
            self._above.buffer_updated(count)
        else:
            # Many small records: each costs as much as a large one.
            if not self._waits_for_turn:
                self._waits_for_turn = True
                self._turns.wait(self, Class.READER)
        self._write_out()  # TLS may have to answer, for example to a change of keys
        self._regulate()

    def _receive(self, space: memoryview) -> int:
        """Decrypt the data of the next record into `space`; return its size.

        Raises SSL.WantReadError, SSL.ZeroReturnError, SSL.Error.
        """
        while True:
            try:
                count = self._tls.recv_into(space, min(len(space), RECORD_BYTES_MAX))
            except SSL.WantReadError:
                if self._feed.has_too_many(self._loop.time()):
                    raise SSL.Error([("", "", CHANGES_KEYS)]) from None
                data = self._feed.take()
                if not data:
                    raise
                self._tls.bio_write(data)
            else:
                self._feed.had_data()
                return int(count)

    def _read_on(self) -> None:
        if not self._waits_for_turn and not self._is_closing:
            self._read()

    def _regulate(self) -> None:
        """Read from TCP unless the protocol above has paused, or a turn is awaited."""
        pauses = self._is_paused or self._waits_for_turn
        if self._tcp is None or self._is_closing or pauses is self._tcp_is_paused:
            return
        self._tcp_is_paused = pauses
        if pauses:
            self._tcp.pause_reading()
        else:
            self._tcp.resume_reading()

    # The transport of the protocol above.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "tls":
            return self.proof
        return default if self._tcp is None else self._tcp.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        try:
            sent = 0
            view = memoryview(data)
            while sent < len(view):
                sent += self._tls.send(view[sent:])
        except (SSL.Error, SSL.SysCallError) as error:
            self._fault = _reason(error)
            self.abort()
            return
        self._write_out()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert self._tcp is not None
        self._tcp.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        assert self._tcp is not None
        return self._tcp.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._is_paused = True
        self._regulate()

    def resume_reading(self) -> None:
        self._is_paused = False
        # Not at once: the protocol above is in the middle of its own work.
        self._loop.call_soon(self._read_on)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Send the pending output and the end of TLS, then close the connection."""
        if self._is_closing:
            return
        with contextlib.suppress(SSL.Error, SSL.SysCallError):
            self._tls.shutdown()
        self._write_out()
        self._close_tcp()

    def abort(self) -> None:
        self._is_closing = True
        if self._tcp is not None:
            self._tcp.abort()

    def _close_tcp(self) -> None:
        if not self._is_closing and self._tcp is not None:
            self._is_closing = True
            self._tcp.close()
            self._loop.call_later(LINGER_S, self._tcp.abort)

    def _write_out(self) -> None:
        """Write to TCP what OpenSSL has to send."""
        tcp = self._tcp
        if tcp is None or self._is_closing:
            return
        while True:
            try:
                data = self._tls.bio_read(4 * BUFFER_BYTES)
            except (SSL.WantReadError, SSL.Error):
                return
            tcp.write(data)


def _reason(error: Exception) -> str:
    """Return the cause of an error of OpenSSL for people."""
    if isinstance(error, SSL.SysCallError):
        return "the connection was closed in the middle of TLS"
    queue = error.args[0] if error.args and isinstance(error.args[0], list) else []
    texts = [str(entry[-1]) for entry in queue if entry and entry[-1]]
    for text in texts:
        for alert, meaning in _ALERTS.items():
            if f"alert {alert}" in text:
                return f"{REFUSED_THERE}: {meaning}"
        if " alert " in text:
            return f"{REFUSED_THERE} ({text}); its log has the reason"
    return "; ".join(texts) or "TLS failed"
