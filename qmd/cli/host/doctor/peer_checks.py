"""Checks of the way to another queue manager, from its name to its handshake.

The handshake states a GUID that was made up for it, and no key: the peer learns nothing, and does
not take it for the session of this queue manager.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509

from protocol import (
    OperatingSystem,
    build_establish_connection,
    establish_connection,
    parse_establish_connection,
)
from protocol.errors import ProtocolError
from protocol.framing import PacketBuffer
from protocol.identifiers import NULL_GUID, guid_text
from protocol.ping import parse_ping, ping_request
from qmd.cli.host.doctor.finding import Finding, fault, note, ok, warning
from qmd.cli.host.doctor.host_checks import is_loopback
from qmd.core.peer_instance import (
    NEEDS_TLS,
    TWO_OF_ONE_IDENTITY,
    Instance,
    from_padding,
    to_padding,
)

if TYPE_CHECKING:
    from qmd.config.file import Settings

PORT, PING_PORT = 1801, 3527
PING_S = 2.0
TLS_S = 3.0


class Met(NamedTuple):
    """The facts that a handshake has shown about a peer."""

    queue_manager: bytes
    instance: Instance | None  # None: it does not run qmd


class PeerCheck:
    """The checks of one peer, in their order; each needs the ones before it."""

    def __init__(self, settings: Settings, host: str, port: int, timeout_s: float) -> None:
        self._settings = settings
        self.host = host
        self.port = port
        self._timeout_s = timeout_s
        self.addresses: list[str] = []
        self.address = ""  # that answers
        self.met: Met | None = None
        self.lacks_room = False  # a finding says so
        self._tls_port = 0

    def run(self) -> Iterator[Finding]:
        """Yield the findings, up to the first fault that makes further checks useless."""
        yield from self._resolve()
        if not self.addresses:
            return
        yield from self._check_allowed()
        yield from self._connect()
        if not self.address:
            return
        yield from self._shake_hands()
        yield from self._check_tls()
        yield from self._ping()

    def _resolve(self) -> Iterator[Finding]:
        began = time.monotonic()
        try:
            infos = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            took_s = time.monotonic() - began
            is_slow = took_s > self._timeout_s or (
                isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
            )
            why = "no name server answers" if is_slow else "the name is not known"
            yield fault(
                "name",
                f"The name {self.host} cannot be resolved: {why} ({error}).",
                "Check the spelling and `getent hosts`; enter it in DNS or /etc/hosts, or check the"
                " servers in /etc/resolv.conf.",
            )
            return
        self.addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
        shown = ", ".join(self.addresses)
        is_name = self.host not in self.addresses and self.host.partition(".")[0] != "localhost"
        if is_name and all(map(is_loopback, self.addresses)):
            yield warning(
                "name",
                f"The name {self.host} stands for {shown}, which is this computer itself.",
                "If it is another computer, correct /etc/hosts or DNS here: installers enter the"
                " own name of a computer so, and a copied file names the wrong one.",
            )
        else:
            yield ok("name", f"{self.host} stands for {shown}.")

    def _check_allowed(self) -> Iterator[Finding]:
        allowed = self._settings.peers.allow
        closed = [
            each
            for each in self.addresses
            if not any(
                ipaddress.ip_address(each.partition("%")[0]) in network for network in allowed
            )
        ]
        if len(closed) == len(self.addresses):
            yield warning(
                "allow",
                f"{', '.join(closed)} is not in allow in [peers]: messages from {self.host} are not"
                " accepted here. Sending to it works.",
                "Add the address to allow in [peers], if it is to send messages here.",
            )

    def _connect(self) -> Iterator[Finding]:
        for address in self.addresses:
            try:
                socket.create_connection((address, self.port), self._timeout_s).close()
            except OSError as error:
                yield self._unreachable(address, error)
            else:
                self.address = address
                yield ok("port", f"{address} port {self.port} answers.")
                return

    def _unreachable(self, address: str, error: OSError) -> Finding:
        if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
            return fault(
                "port",
                f"{address} port {self.port} does not answer within {self._timeout_s:g} s.",
                "The computer is off, or a packet filter on the way drops the packets: allow TCP"
                f" {self.port} there.",
            )
        if error.errno == errno.ECONNREFUSED:
            return fault(
                "port",
                f"The computer {address} answers, but no program listens at port {self.port}.",
                "Start the queue manager there, and let it listen on that address: address in"
                " [listen], which is the loopback address by default. If it does, a packet filter"
                f" rejects the connection: allow TCP {self.port} there.",
            )
        if error.errno in (errno.EPERM, errno.EACCES):
            return fault(
                "port",
                f"A packet filter of this computer forbids connections to {address} port"
                f" {self.port}.",
                f"Allow TCP {self.port} to it here (nft list ruleset).",
            )
        if error.errno == errno.EHOSTUNREACH and _has_route(address, self.port):
            return fault(
                "port",
                f"This computer has a route to {address}, and the connection to port {self.port} is"
                f" refused on the way: {error.strerror}.",
                "The computer is off, or a router or packet filter rejects the packets: allow TCP"
                f" {self.port} there.",
            )
        if error.errno == errno.ENETUNREACH and _has_route(address, self.port):
            return fault(
                "route",
                f"This computer has a route to {address}, and a router on the way has none.",
                f"Correct the routes there: traceroute {address} shows the last router.",
            )
        if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN):
            return fault(
                "route",
                f"There is no route from this computer to {address}: {error.strerror}.",
                f"Check the network: ip route get {address}",
            )
        return fault("port", f"{address} port {self.port}: {error.strerror or error}.", "")

    def _shake_hands(self) -> Iterator[Finding]:
        try:
            answer = self._exchange()
        except TimeoutError:
            if self._speaks_tls():
                yield self._tls_at_the_port()
                return
            yield fault(
                "handshake",
                f"A program at {self.address} port {self.port} accepts connections and does not"
                " answer the request for a session.",
                "It is no queue manager, or it hangs: look there.",
            )
            return
        except (OSError, EOFError) as error:
            words = str(error) or "the connection was closed"
            if self._speaks_tls():
                yield self._tls_at_the_port()
                return
            yield fault(
                "handshake",
                f"{self.address} closes the connection before a session begins ({words}).",
                "Add the address of this computer to allow in [peers] there; or it has as many"
                " sessions as it may have, or it is no queue manager, or a proxy before one that is"
                " down.",
            )
            return
        except ProtocolError as error:
            if self._speaks_tls():
                yield self._tls_at_the_port()
                return
            yield fault(
                "handshake",
                f"The program at {self.address} port {self.port} is no queue manager: {error}.",
                "Correct the port; queue managers listen at 1801.",
            )
            return
        self.met = answer
        yield ok(
            "handshake",
            f"Queue manager {guid_text(answer.queue_manager)} answers; it"
            f" {'runs qmd' if answer.instance else 'does not run qmd'}.",
        )
        yield from self.check_room()

    def _speaks_tls(self) -> bool:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        place = (self.address, self.port)
        try:
            with socket.create_connection(place, min(TLS_S, self._timeout_s)) as plain:
                context.wrap_socket(plain).close()
        except OSError:  # ssl.SSLError is one
            return False
        return True

    def _tls_at_the_port(self) -> Finding:
        return fault(
            "handshake",
            f"The program at {self.address} port {self.port} speaks TLS: that is the port of TLS"
            " sessions of a queue manager, or another kind of server.",
            "Give the port in [listen] there, 1801 by default; the way to the port of TLS is"
            " checked with it.",
        )

    def check_room(self, *, again: bool = False) -> Iterator[Finding]:
        """Check that the peer has not lacked room lately, once; `again` asks it now."""
        if self.lacks_room:
            return
        with contextlib.suppress(OSError, EOFError, ProtocolError):
            met = self._exchange() if again else self.met
            if met is not None and met.instance is not None and met.instance.lack is not None:
                self.lacks_room = True
                yield fault(
                    "room",
                    f"{self.host} has refused messages in the last two minutes:"
                    f" {met.instance.lack.sentence}.",
                    f"`qmd status` and `qmd queue list` on {self.host} show what fills it.",
                )

    def _exchange(self) -> Met:
        """Ask for a session as a queue manager that is not known, and close the connection."""
        guid = os.urandom(16)
        request = establish_connection(
            client=guid,
            server=NULL_GUID,
            timestamp=int(time.monotonic() * 1000) & 0xFFFFFFFF,
            operating_system=OperatingSystem.of(constant=0x10, no_ping=True, server=1),
            refused=False,
            padding=to_padding(Instance(1, os.urandom(16))),
        )
        with socket.create_connection((self.address, self.port), self._timeout_s) as connection:
            connection.sendall(build_establish_connection(request))
            buffer = PacketBuffer()
            while True:
                data = connection.recv(4096)
                if not data:
                    raise EOFError("the connection was closed")
                packets = buffer.feed(data)
                if packets:
                    break
        answer = parse_establish_connection(packets[0])
        instance = from_padding(answer.padding)
        if instance is not None:
            self._tls_port = instance.tls_port
        if answer.internal.flags.connection_refused:
            if instance is not None and instance.refusal == NEEDS_TLS:
                return Met(answer.server, instance)
            if instance is not None and instance.refusal == TWO_OF_ONE_IDENTITY:
                raise OSError("it refuses the session because of an identity")
            raise OSError("it refuses the session; it may have too many")
        return Met(answer.server, instance)

    def _check_tls(self) -> Iterator[Finding]:
        is_needed = (
            self.met is not None
            and self.met.instance is not None
            and (self.met.instance.refusal == NEEDS_TLS)
        )
        if is_needed and not self._settings.tls.enabled:
            yield fault(
                "tls",
                f"{self.host} takes sessions over TLS only, and TLS is off here.",
                "Set enabled = true in [tls]: docs/tls.md.",
            )
            return
        port = self._tls_port or (self._settings.tls.port if self._settings.tls.enabled else 0)
        if not port or not self._settings.tls.enabled:
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with (
                socket.create_connection((self.address, port), self._timeout_s) as plain,
                context.wrap_socket(plain) as secure,
            ):
                encoded = secure.getpeercert(binary_form=True) or b""
        except (OSError, ssl.SSLError) as error:
            level = fault if is_needed else note
            yield level(
                "tls",
                f"{self.address} port {port} makes no TLS connection: {error}.",
                "Enable TLS there, open the port, or allow plain sessions in policy in [tls].",
            )
            return
        yield _judge_certificate(self.address, port, encoded)

    def _ping(self) -> Iterator[Finding]:
        """Send a ping of the protocol: many queue managers do not answer it."""
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.settimeout(min(PING_S, self._timeout_s))
            try:
                probe.connect((self.address, PING_PORT))
                probe.send(ping_request(cookie=1, queue_manager=os.urandom(16), server=True))
                answer = parse_ping(probe.recv(2048))
            except (OSError, ProtocolError):
                yield note(
                    "ping",
                    f"{self.address} does not answer pings at UDP port {PING_PORT}, which most"
                    " queue managers leave off.",
                )
                return
        if answer.flags.refused:
            yield fault(
                "ping",
                f"{self.address} answers pings, and refuses sessions.",
                "It has as many sessions as it may have, or does not allow this computer.",
            )
        else:
            yield ok("ping", f"{self.address} answers pings.")


def _has_route(address: str, port: int) -> bool:
    """Return whether the routing table has a way to an address; no packet is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        try:
            way.connect((address, port))
        except OSError:
            return False
    return True


def _judge_certificate(address: str, port: int, encoded: bytes) -> Finding:
    try:
        found = x509.load_der_x509_certificate(encoded)
    except ValueError as error:
        return fault("tls", f"The certificate at {address} port {port} is not valid: {error}.", "")
    now = datetime.datetime.now(datetime.UTC)
    if found.not_valid_after_utc < now or found.not_valid_before_utc > now:
        return fault(
            "tls",
            f"The certificate at {address} port {port} is valid from"
            f" {found.not_valid_before_utc:%Y-%m-%d} to {found.not_valid_after_utc:%Y-%m-%d} only.",
            "Renew it there (`qmd tls rotate`), or set the clock of one of the computers.",
        )
    return ok(
        "tls",
        f"{address} port {port} speaks TLS, with a certificate until"
        f" {found.not_valid_after_utc:%Y-%m-%d}.",
    )
