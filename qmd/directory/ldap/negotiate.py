"""Authentication by GSS-SPNEGO: Kerberos if this system has it, or NTLM. [MS-ADTS] 5.1.1.1.2

pyspnego builds the tokens. NTLM is pure Python and needs name and password. Kerberos needs the
packages gssapi and krb5, and then uses a password, a keytab or an existing ticket.

Without TLS the mechanism must encrypt everything after the bind; otherwise the connection is
refused. Over TLS it must not encrypt (the server refuses a layer in a layer); there the token is
bound to the server's certificate instead (RFC 5929 4), so that it cannot be relayed.

Over TLS, NTLM protects nothing and therefore has no key to exchange. pyspnego 0.11 announces a key
exchange nevertheless, and then sends no key ([MS-NLMP] 3.1.5.1.2 has it with signatures or
encryption only), which Samba refuses. `_Ntlm` corrects that with private names of pyspnego, only in
this module; the tests with a domain controller fail if a new version changes these names.
"""

from __future__ import annotations

import hashlib
from typing import Any

import spnego
import spnego.auth
from cryptography import x509
from spnego._ntlm import NTLMProxy
from spnego._ntlm_raw.messages import NegotiateFlags
from spnego.channel_bindings import GssChannelBindings
from spnego.exceptions import SpnegoError

from qmd.directory.ldap.messages import LdapFault


class _Ntlm(NTLMProxy):
    """NTLM that announces no key exchange if no key is needed."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if not self._context_req & (NegotiateFlags.sign | NegotiateFlags.seal):
            self._context_req &= ~NegotiateFlags.key_exch


spnego.auth.NTLMProxy = _Ntlm  # type: ignore[attr-defined]


class NegotiationFailed(Exception):
    """No token could be built, or the server's token was invalid."""


class Negotiation:
    """The steps of one bind. Each may wait for a KDC: call them in a thread."""

    def __init__(
        self, user: str, password: bytes, host: str, certificate: bytes | None, *, protected: bool
    ) -> None:
        wanted = spnego.ContextReq.mutual_auth
        if protected:
            wanted |= spnego.ContextReq.no_integrity
        else:
            wanted |= (
                spnego.ContextReq.integrity
                | spnego.ContextReq.confidentiality
                | spnego.ContextReq.sequence_detect
                | spnego.ContextReq.replay_detect
            )
        try:
            self._context = spnego.client(
                username=user or None,
                password=password.decode() if password else None,
                hostname=host,
                service="ldap",
                channel_bindings=_bindings(certificate) if certificate else None,
                context_req=wanted,
                protocol="negotiate",
            )
        except (SpnegoError, ValueError, ImportError) as error:
            raise NegotiationFailed(_words(error)) from error

    def step(self, token: bytes | None) -> bytes:
        """Return the next token for the server. Raises NegotiationFailed."""
        try:
            return self._context.step(token) or b""
        except (SpnegoError, ValueError, ImportError) as error:
            raise NegotiationFailed(_words(error)) from error

    def finish(self, token: bytes | None) -> None:
        """Process the server's last token, if it sent one: it authenticates the server.

        Raises NegotiationFailed if the server is not authenticated.
        """
        if token and not self._context.complete:
            self.step(token)
        if not self._context.complete:
            raise NegotiationFailed("the server accepted the bind before it proved its identity")

    def layer(self) -> SealingLayer:
        return SealingLayer(self._context)


class SealingLayer:
    """Encrypts all outgoing data, decrypts all incoming data."""

    def __init__(self, context: spnego.ContextProxy) -> None:
        self._context = context

    def wrap(self, data: bytes) -> bytes:
        return self._context.wrap(data).data

    def unwrap(self, data: bytes) -> bytes:
        try:
            return self._context.unwrap(data).data
        except (SpnegoError, ValueError) as error:
            raise LdapFault("the received data was changed on its way") from error


def _bindings(certificate: bytes) -> GssChannelBindings:
    """Return the channel binding tls-server-end-point for a certificate.

    It is the certificate's hash, by the algorithm of its signature. RFC 5929 4.1
    """
    algorithm = x509.load_der_x509_certificate(certificate).signature_hash_algorithm
    name = "sha256" if algorithm is None or algorithm.name in ("md5", "sha1") else algorithm.name
    digest = hashlib.new(name, certificate).digest()
    return GssChannelBindings(application_data=b"tls-server-end-point:" + digest)


def _words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__
