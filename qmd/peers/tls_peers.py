"""TLS with other queue managers: which of them use it, and which certificates are theirs.

Three facts decide about a peer, in this order:

- a rule of the configuration ([tls] policy): required, preferred or never;
- a pin of an operator (`qmd tls pin`), or the row of a peer that was met over TLS: from then on it
  is neither dialled nor believed without TLS, nor with another key;
- an offer: the port for TLS that a qmd names in the handshake without TLS.

A row is written only if a GUID cannot be claimed by any program: an authority vouches for it, it
is pinned, or it answered where this queue manager connected to. Otherwise the first program that
connects with a GUID could lock out the queue manager that has it (docs/decisions/0031).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from protocol.identifiers import guid_text
from qmd.config.route_rules import Pattern
from qmd.config.tls_rules import TlsRule, Wanted
from qmd.core.peer_instance import TlsNeeded
from qmd.tls.errors import TlsFilesError
from qmd.tls.pins import PinFile, matches
from storage.tables import tls_peers
from storage.tables.tls_peers import TlsPeer

if TYPE_CHECKING:
    from qmd.peers.connection import PeerConnection, SessionUser
    from qmd.runtime.services import Services
    from qmd.tls.certificate import Certificate
    from qmd.tls.channel import Proof, TlsChannel
    from qmd.tls.credentials import Credentials

log = structlog.get_logger()

PORT = 1807  # the default of [tls] port
ROWS_MAX = 20_000
AVOIDED_S = 600.0  # without TLS, after TLS that is only preferred has failed
OFFERS_MAX = 10_000
NO_RULE = TlsRule(Pattern(), Wanted.PREFERRED)


class Dialled(NamedTuple):
    """The other end of a link: its names and addresses, and its GUID.

    `expected` is the GUID that must answer, if the link has one; `known` that, or the last one that
    answered. `address` is the one that the link dials.
    """

    hosts: tuple[str, ...]
    expected: bytes | None
    known: bytes | None
    address: tuple[str, int] | None


class Ways(NamedTuple):
    """How to dial: the port for TLS (None: without), and whether TLS may be left out."""

    tls_port: int | None
    may_be_plain: bool


class TlsPeers:
    """The policy, the pins, and the peers that were met over TLS."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._settings = settings = services.settings.tls
        self.is_enabled = settings.enabled
        self._credentials: Credentials | None = None
        self._pins = PinFile(settings.pins)
        self._met: dict[str, TlsPeer] = {}
        self._offers: dict[tuple[str, int], int] = {}  # dialled address -> port for TLS
        self._needed: dict[tuple[str, int], None] = {}  # of these, those that accept nothing else
        self._avoided: dict[tuple[str, int], tuple[float, str]] = {}
        self.listening: tuple[str, int] | None = None
        self.accepted_count = self.refused_count = self.failed_count = 0
        self.last_refusal = ""
        #: Called in the next turn of the loop when a queue manager was bound to TLS.
        self.on_bound: Callable[[], None] = lambda: None
        self._warned_on = ""  # the day of the last warning about something that expires

    def restore(self, rows: Iterable[TlsPeer]) -> None:
        """Restore the stored peers."""
        self._met = {row.peer: row for row in rows}

    def start(self) -> None:
        """Load the files.  Raises TlsFilesError."""
        # Imported here: OpenSSL takes time and memory that a host without TLS does not need.
        from qmd.tls.credentials import Credentials

        credentials = Credentials(self._settings, self._services.id, self._make_own)
        credentials.load()
        self._pins.reload()
        self._credentials = credentials

    @property
    def credentials(self) -> Credentials:
        """The files; `start` has loaded them."""
        assert self._credentials is not None, "start comes first"
        return self._credentials

    # Dialling.

    def ways(self, dialled: Dialled) -> Ways:
        """Return how to dial a peer."""
        if not self.is_enabled:
            return Ways(None, may_be_plain=True)
        rule = self._rule(dialled.hosts, dialled.known)
        if rule.wanted is Wanted.NEVER:
            return Ways(None, may_be_plain=True)
        row = self._row(dialled)
        offered = 0 if dialled.address is None else self._offers.get(dialled.address, 0)
        port = rule.port or offered or (0 if row is None else row.port)
        strict = (
            rule.wanted is Wanted.REQUIRED
            or row is not None
            or dialled.address in self._needed
            or self._is_pinned(dialled.known)
        )
        if strict:
            return Ways(port or PORT, may_be_plain=False)
        if not port or self._is_avoided(dialled.address):
            return Ways(None, may_be_plain=True)
        return Ways(port, may_be_plain=True)

    def offered(self, dialled: Dialled, port: int, *, is_needed: bool) -> bool:
        """Take the port for TLS that a peer has named in a handshake without it.

        `is_needed`: the peer has refused the session without TLS, and will do so again. Return
        whether the handshake must end, so that the link dials that port.
        """
        if not self.is_enabled or not port or dialled.address is None:
            return False
        if self._rule(dialled.hosts, dialled.known).wanted is Wanted.NEVER:
            return False
        if len(self._offers) >= OFFERS_MAX:
            self._offers.clear()
            self._needed.clear()
        self._offers[dialled.address] = port
        if is_needed:
            self._needed[dialled.address] = None
        return is_needed or not self._is_avoided(dialled.address)

    def failed(self, dialled: Dialled, reason: str) -> None:
        """Record that TLS with a peer has failed; if it is only preferred, it is left out."""
        if dialled.address is None or not self.ways(dialled).may_be_plain:
            return
        if len(self._avoided) >= OFFERS_MAX:
            self._avoided.clear()
        self._avoided[dialled.address] = self._services.loop.time() + AVOIDED_S, reason
        host, port = dialled.address
        self._services.log_limited(
            "tls_not_used", host, address=f"{host}:{port}", reason=reason, code="tls_not_used"
        )

    def _is_avoided(self, address: tuple[str, int] | None) -> bool:
        if address is None or address not in self._avoided:
            return False
        if self._avoided[address][0] > self._services.loop.time():
            return True
        del self._avoided[address]
        return False

    # Judging.

    def offer_to(self, connection: PeerConnection) -> int:
        """Return the port for TLS that is named to a peer in a handshake, or 0."""
        if self.listening is None or connection.link is not None or connection.proof is not None:
            return 0
        if self._rule((connection.host,), None).wanted is Wanted.NEVER:
            return 0
        return self.listening[1]

    def judge_certificate(self, host: str, proof: Proof, dialled: Dialled | None) -> str:
        """Return why a certificate is refused, or ""; `dialled` is None if the peer connected."""
        certificate = proof.certificate
        guid = certificate.guid
        hosts = (host,) if dialled is None else (host, *dialled.hosts)
        if self._rule(hosts, guid).wanted is Wanted.NEVER:
            return "TLS is never used with it ([tls] policy)"
        if guid == self._services.id and certificate.key != self.credentials.certificate.key:
            return "its certificate names the queue manager of this host"
        if dialled is not None and dialled.expected not in (None, guid):
            assert dialled.expected is not None
            return (
                f"its certificate names the queue manager {guid_text(guid)}, and"
                f" {guid_text(dialled.expected)} is expected"
            )
        if reason := self._judge_key(proof):
            return reason
        if (
            proof.by_authority
            and dialled is not None
            and dialled.expected is None
            and not any(map(certificate.has_name, dialled.hosts))
        ):
            return (
                f"its certificate has the names {', '.join(certificate.names) or '(none)'}, and"
                f" {dialled.hosts[0]} was dialled"
            )
        return ""

    def _judge_key(self, proof: Proof) -> str:
        certificate = proof.certificate
        pins = self._pins.of(certificate.guid)
        text = guid_text(certificate.guid)
        if pins:
            if matches(pins, certificate):
                return ""
            return f"its key is none of those that are pinned for {text} (qmd tls pin)"
        if self.credentials.has_authorities:
            if proof.by_authority:
                return ""
            return "no authority of this host has issued its certificate ([tls] authorities)"
        row = self._met.get(text)
        if row is None or not row.key:
            return ""
        if row.key != certificate.origin_key:
            return (
                f"it has another key than the queue manager {text} that was met before; if that"
                f" was installed anew: qmd tls forget {text}"
            )
        return self._judge_age(row, certificate)

    def _judge_age(self, row: TlsPeer, certificate: Certificate) -> str:
        """Return why a replaced key is refused: the later one has been in use for long enough."""
        if not certificate.issued_s or certificate.issued_s >= row.issued_s:
            return ""  # the identity key itself needs no endorsement, and is never too old
        if self._services.environment.time() < row.newer_since_s + self._settings.overlap_s:
            return ""
        return "its key was replaced by a later one"

    def judge(self, connection: PeerConnection, guid: bytes) -> str | None:
        """Return why there must be no session with the queue manager that a handshake states.

        None: there may be one.
        """
        proof = connection.proof
        if proof is not None:
            if proof.certificate.guid == guid:
                return None
            reason = (
                f"its certificate names the queue manager {guid_text(proof.certificate.guid)}, and"
                f" it states {guid_text(guid)}"
            )
            self.refused(connection.host, reason)
            return reason
        if not self.is_enabled or guid == self._services.id:
            return None
        rule = self._rule((connection.host, *_hosts_of(connection)), guid)
        if rule.wanted is Wanted.NEVER:
            return None
        if rule.wanted is Wanted.REQUIRED and not connection.is_encrypted:
            reason = TlsNeeded("TLS is required of it ([tls] policy)")
        elif self._is_pinned(guid) or guid_text(guid) in self._met:
            reason = TlsNeeded(
                "it has been met over TLS, and is not believed without it; to permit that: a rule"
                f" 'never' in [tls] policy, or qmd tls forget {guid_text(guid)}"
            )
        else:
            return None
        self.refused(connection.host, reason)
        return reason

    def judge_again(self, proof: Proof) -> str:
        """Return why an open session must end after a change of the files, or ""."""
        certificate = proof.certificate
        if certificate.not_after < datetime.now(UTC):
            return "its certificate has expired"
        is_issued = proof.by_authority and self.credentials.has_authorities
        if is_issued and (fault := self.credentials.check_again(proof.shown, proof.chain)):
            return f"its certificate is no longer valid: {fault}"
        return self._judge_key(proof)

    def refused(self, host: str, reason: str) -> None:
        """Count and log a refused certificate or a refused session without TLS."""
        reason = str(reason)  # not a class of its own, which the log would show
        self.refused_count += 1
        self.last_refusal = f"{host}: {reason}"
        self._services.log_limited(
            "tls_refused", host, address=host, reason=reason, code="tls_refused"
        )

    def handshake_failed(self, channel: TlsChannel, reason: str) -> None:
        """Count and log a handshake that has failed."""
        if channel.has_judged:
            self.refused(channel.host, reason)
            return
        self.failed_count += 1
        self._services.log_limited(
            "tls_handshake_failed", channel.host, address=channel.host, reason=reason
        )

    # Peers that were met.

    def opened(self, connection: PeerConnection) -> None:
        """Record that a session over TLS has opened."""
        proof = connection.proof
        if proof is None:
            return
        self.accepted_count += 1
        certificate = proof.certificate
        link = connection.link
        is_bound = proof.by_authority or self._is_pinned(certificate.guid)
        is_dialled = link is not None
        if not (is_bound or is_dialled) or certificate.guid == self._services.id:
            return
        port = connection.port if is_dialled else 0
        key = "" if proof.by_authority else certificate.origin_key
        self._meet(guid_text(certificate.guid), port, key, certificate.issued_s)
        if link is not None and link.address is not None:
            self._avoided.pop(link.address, None)
            self._meet(_text(link.address), port, "", 0)

    def _meet(self, peer: str, port: int, key: str, issued_s: int) -> None:
        now_s = int(self._services.environment.time())
        before = self._met.get(peer)
        newer_since_s = now_s
        if before is not None:
            port = port or before.port
            if before.issued_s >= issued_s:
                issued_s, newer_since_s = before.issued_s, before.newer_since_s
            if before[1:4] == (port, key, issued_s):
                return
        elif len(self._met) >= ROWS_MAX:
            self._services.log_limited("tls_peers_full", "tls", peer=peer, code="tls_peers_full")
            return
        row = TlsPeer(peer, port, key, issued_s, newer_since_s, now_s)
        self._met[peer] = row
        if before is None:
            self._services.loop.call_soon(self.on_bound)
        self._services.storage.batch.run(partial(tls_peers.remember, row=row))

    def forget(self, peer: str) -> bool:
        """Forget that a GUID or an address (`host:port`) was met over TLS: an operator permits it.

        Return whether it was known.
        """
        self._avoided.clear()
        self._offers.clear()
        self._needed.clear()
        if self._met.pop(peer, None) is None:
            return False
        self._services.storage.batch.run(partial(tls_peers.forget, peer=peer))
        return True

    @property
    def met(self) -> list[TlsPeer]:
        """The stored peers."""
        return list(self._met.values())

    def _row(self, dialled: Dialled) -> TlsPeer | None:
        if dialled.known is not None and (row := self._met.get(guid_text(dialled.known))):
            return row
        return None if dialled.address is None else self._met.get(_text(dialled.address))

    def _is_pinned(self, guid: bytes | None) -> bool:
        return guid is not None and bool(self._pins.of(guid))

    def _rule(self, hosts: Iterable[str], guid: bytes | None) -> TlsRule:
        hosts = tuple(hosts)
        return next((rule for rule in self._settings.policy if rule.fits(hosts, guid)), NO_RULE)

    # The files.

    def reload(self) -> bool:
        """Read changed files again; return whether open sessions must be judged again."""
        is_new = self.credentials.reload()
        if is_new:
            log.info("tls_files_loaded", fingerprint=self.credentials.certificate.fingerprint)
        elif self.credentials.fault:
            self._services.log_limited(
                "tls_files_faulty", "tls", reason=self.credentials.fault, code="tls_files_faulty"
            )
        try:
            is_new = self._pins.reload() or is_new
        except TlsFilesError as error:
            self._services.log_limited(
                "tls_files_faulty", "pins", reason=str(error), code="tls_files_faulty"
            )
        self._warn()
        return is_new

    @property
    def expires_s(self) -> float | None:
        """When the certificate of this host expires, in seconds since 1970; None: it has none."""
        if self.listening is None:
            return None
        return self.credentials.certificate.not_after.timestamp()

    def status(self) -> dict[str, Any]:
        """Return the state of TLS, as `qmd status` shows it."""
        if self.listening is None:
            return {"enabled": False}
        certificate = self.credentials.certificate
        host, port = self.listening
        return {
            "enabled": True,
            "listen": f"{host}:{port}",
            "fingerprint": certificate.fingerprint,
            "identity": certificate.origin_key,
            "expires": f"{certificate.not_after:%Y-%m-%d}",
            "accepted": self.accepted_count,
            "refused": self.refused_count,
            "handshakes_failed": self.failed_count,
            "last_refusal": self.last_refusal or None,
            "left_out": [
                f"{_text(address)}: {self._avoided[address][1]}"
                for address in list(self._avoided)
                if self._is_avoided(address)
            ],
            "problems": [*self.warnings(), *filter(None, (self.credentials.fault,))],
        }

    def warnings(self) -> list[str]:
        """Return a sentence for each certificate or list of this host that expires soon."""
        if not self.is_enabled or self.listening is None:
            return []
        now = datetime.now(UTC)
        limit = now + timedelta(seconds=self._settings.warn_before_s)
        return [
            f"{name} {'has expired on' if until < now else 'expires on'} {until:%Y-%m-%d}"
            for name, until in self.credentials.expiring
            if until < limit
        ]

    def _warn(self) -> None:
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        if today == self._warned_on:
            return
        self._warned_on = today
        for text in self.warnings():
            log.warning("tls_expires", reason=text, code="tls_expires")

    def _make_own(self, valid: timedelta) -> tuple[bytes, bytes]:
        """Return a certificate of the identity key, and that key, for a host without files."""
        from qmd.tls.making import Host, key_pem, own_certificate

        services = self._services
        key = services.key.private
        names = (services.name, *services.settings.queue_manager.aliases)
        host = Host(services.id, names)
        return own_certificate(host, key, key, valid=valid), key_pem(key)


def _hosts_of(connection: PeerConnection) -> tuple[str, ...]:
    return () if connection.link is None else connection.link.hosts


def end_of(link: SessionUser) -> Dialled:
    """Return the other end of a link."""
    known = link.guid if link.guid is not None else link.remote_id
    return Dialled(link.hosts, link.guid, known, link.address)


def _text(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host.casefold()}]:{port}" if ":" in host else f"{host.casefold()}:{port}"
