"""The check of a received message: decrypts its body and verifies its signature.

[MS-MQQB] 3.1.5.8.3.  The sender signs first and encrypts then (3.1.7.1.4, 3.1.7.1.5), so that the
body is decrypted before the signature is verified.

The stored message has a plain body: readers need no key, and it stays readable when the key of the
host changes.  These fields of its SecurityHeader are this queue manager's own words about it; the
values that a peer sends in them are removed:

    Flags.AS        the style of the verified signature, 0: not authenticated
    Flags.AU, .EB   0
    EncryptionKey   not empty if the body was encrypted on its way
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from protocol.errors import MalformedPacket
from protocol.message_class import MessageClass
from protocol.security_data import PROVIDER_RSA_AES, PROVIDER_RSA_FULL, parse_provider
from protocol.security_marks import is_authenticated, sender_text, was_encrypted
from protocol.signed_fields import SignatureStyle, signed_parts
from protocol.user_message import build_user_message
from qmd.message_security.algorithms import Policy, Unacceptable
from qmd.message_security.decryption_failures import DecryptionFailures
from qmd.message_security.encryption import check_cipher, decrypt, open_session_key
from qmd.message_security.signatures import Signer, check_hash, signer_of, verify

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

    from protocol.headers import SecurityHeader
    from protocol.records import UserMessage
    from qmd.message_security.key_cache import KeyCache

_BAD_SIGNATURE = MessageClass.NACK_BAD_SIGNATURE


#: The fingerprints of the certificates and of the keys of senders, as far as the directory was
#: asked for them.
Registered = Mapping[str, frozenset[str]]
NONE_REGISTERED: Registered = MappingProxyType({})


class Keys(Protocol):
    """The keys and certificates that a check needs: `Keyring`."""

    def private_key(self) -> RSAPrivateKey | None: ...
    def is_registered(self, sender: str, fingerprint: str) -> bool: ...
    def is_pinned(self, fingerprint: str) -> bool: ...


class Trust(Protocol):
    """The authorities of certificates: `Authorities`."""

    def fault(self, signer: Signer, *, is_pinned: bool) -> str: ...


class MustAskSender(Exception):
    """A check needs the certificates of `sender`, a SID or a GUID, from the directory."""

    def __init__(self, sender: str) -> None:
        super().__init__(sender)
        self.sender = sender


class Checked(NamedTuple):
    """A checked message: as it is to be stored, or why it is to be refused."""

    message: UserMessage
    packet: bytes
    message_class: MessageClass | None = None  # of the refusal; None: it is acceptable
    detail: str = ""
    ask: str = ""  # the sender of which the directory must be asked first: nothing is decided

    @property
    def is_authenticated(self) -> bool:
        """Return whether its signature was verified."""
        return self.message_class is None and is_authenticated(self.message)

    @property
    def was_encrypted(self) -> bool:
        """Return whether its body came encrypted, and could be decrypted."""
        return self.message_class is None and was_encrypted(self.message)


class Checker:
    """Checks of messages, with the keys of this host.  All of it may run in another thread."""

    def __init__(
        self,
        keys: Keys,
        policy: Policy,
        cache: KeyCache[bytes],
        *,
        old_signatures: bool = False,
        trust: Trust | None = None,
        has_directory: bool = False,
    ) -> None:
        """`old_signatures`: MSMQ 1.0 signatures count; they do not cover the destination.

        `trust`: judges certificates besides their periods; None: all are accepted.
        `has_directory`: certificates of senders may be in the directory, too.
        """
        self._keys = keys
        self._policy = policy
        self._cache = cache
        self._old_signatures = old_signatures
        self._trust = trust
        self._failures = DecryptionFailures()
        self._has_directory = has_directory

    def check(
        self,
        message: UserMessage,
        packet: bytes,
        now: float,
        wall_s: float,
        registered: Registered = NONE_REGISTERED,
        host: str = "",
    ) -> Checked:
        """Check a message with a SecurityHeader; the result has a class if it must be refused.

        now: a clock that only moves forward; wall_s: the wall clock, in seconds since 1970.
        registered: the answers of the directory.  The result has `ask` if one is missing.  host:
        the address that has sent the message.  Raises NotCheckable.
        """
        header = message.security
        assert header is not None, "the caller checks messages with a SecurityHeader"
        plain = header._replace(
            flags=header.flags.replace(authenticated=0, body_encrypted=0, signature_type=0),
            encryption_key=header.encryption_key if header.flags.body_encrypted else b"",
        )
        changed = message._replace(security=plain)
        try:
            if header.flags.body_encrypted:
                body = self._tried_body(message, header, now, host)
                properties = changed.properties
                changed = changed._replace(
                    properties=properties._replace(
                        message_size=len(body), allocation_body_size=len(body), body=body
                    )
                )
            style = self._verify(changed, wall_s, registered)
        except MustAskSender as error:
            return Checked(message, packet, ask=error.sender)
        except Unacceptable as error:
            return Checked(message, packet, error.message_class, error.detail)
        changed = changed._replace(
            security=plain._replace(flags=plain.flags.replace(signature_type=style))
        )
        if changed == message:
            return Checked(message, packet)
        try:
            return Checked(changed, build_user_message(changed))
        except MalformedPacket:  # nothing is left in the SecurityHeader
            return _without_header(changed)

    def _tried_body(
        self, message: UserMessage, header: SecurityHeader, now: float, host: str
    ) -> bytes:
        """Return the decrypted body unless too many could not be.  Raises Unacceptable."""
        if self._failures.are_too_many(host, header.encryption_key, now):
            raise Unacceptable(
                MessageClass.NACK_BAD_ENCRYPTION,
                f"too many bodies of {host} with this key could not be decrypted",
            )
        try:
            return self._plain_body(message, header, now)
        except Unacceptable:
            self._failures.add(host, header.encryption_key, now)
            raise

    def _plain_body(self, message: UserMessage, header: SecurityHeader, now: float) -> bytes:
        """Return the decrypted body.  Raises Unacceptable."""
        properties, item = message.properties, header.encryption_key
        algorithm = properties.encryption_algorithm
        check_cipher(properties.privacy_level, algorithm, self._policy)
        private = self._keys.private_key()
        if private is None:
            raise Unacceptable(
                MessageClass.NACK_BAD_ENCRYPTION, "this host has no key: `qmd key init` makes one"
            )
        mark = (
            properties.privacy_level,
            algorithm,
            message.user.source_queue_manager,
            item,
            private,
        )
        key = self._cache.get(mark, now)
        if key is None:
            key = open_session_key(item, algorithm, private)
            self._cache.add(mark, key, now)
        return decrypt(properties.body, key, algorithm)

    def _verify(self, message: UserMessage, wall_s: float, registered: Registered) -> int:
        """Return the style of the signature, 0 if there is none.  Raises Unacceptable."""
        header, multi_queue = message.security, message.multi_queue
        assert header is not None
        if header.signature:
            signature = header.signature
            styles = [SignatureStyle.MSMQ_2, SignatureStyle.MSMQ_1]
        elif multi_queue is not None and multi_queue.signature.signature:
            signature, styles = multi_queue.signature.signature, [SignatureStyle.MSMQ_3]
        else:
            return 0
        _check_provider(header)
        algorithm = message.properties.hash_algorithm
        check_hash(algorithm, self._policy)
        if not header.certificate:
            raise Unacceptable(_BAD_SIGNATURE, "the message is signed and has no certificate")
        signer = signer_of(header.certificate, wall_s)
        for style in styles:
            if verify(signer, signature, signed_parts(message, style), algorithm):
                break
        else:
            raise Unacceptable(
                _BAD_SIGNATURE, "the signature is not of this message, or of another certificate"
            )
        if style is SignatureStyle.MSMQ_1 and not self._old_signatures:
            raise Unacceptable(
                _BAD_SIGNATURE, "signatures of MSMQ 1.0, which cover few fields, are not allowed"
            )
        is_pinned = self._check_sender(header, signer, registered)
        if self._trust is not None:
            is_pinned = is_pinned or self._keys.is_pinned(signer.fingerprint)
            if fault := self._trust.fault(signer, is_pinned=is_pinned):
                raise Unacceptable(
                    _BAD_SIGNATURE, f"the certificate {signer.fingerprint[:16]} {fault}"
                )
        return style

    def _check_sender(self, header: SecurityHeader, signer: Signer, registered: Registered) -> bool:
        """Return whether the certificate is registered for the sender id; False: there is none.

        Raises Unacceptable if it is not, and MustAskSender if the directory has to be asked.
        """
        if not header.flags.sender_type:
            return False
        sender = sender_text(header)
        if sender is not None:
            if self._keys.is_registered(sender, signer.fingerprint):
                return True
            if self._has_directory:
                found = registered.get(sender)
                if found is None:
                    raise MustAskSender(sender)
                if signer.fingerprint in found or signer.key_fingerprint in found:
                    return True
        raise Unacceptable(
            _BAD_SIGNATURE,
            f"the certificate {signer.fingerprint[:16]} is not registered for the sender"
            f" {sender or header.sender_id.hex()}",
        )


def _without_header(message: UserMessage) -> Checked:
    """Return a message without a SecurityHeader, in which nothing was left."""
    user = message.user
    changed = message._replace(
        user=user._replace(flags=user.flags.replace(security_header=0)), security=None
    )
    return Checked(changed, build_user_message(changed))


def _check_provider(header: SecurityHeader) -> None:
    """Raise Unacceptable for a signature of a provider that does not sign with RSA."""
    if not header.provider or header.flags.default_provider:
        return
    try:
        provider = parse_provider(header.provider)
    except MalformedPacket as error:
        raise Unacceptable(_BAD_SIGNATURE, f"its provider is not valid: {error}") from error
    if provider.provider_type not in (PROVIDER_RSA_FULL, PROVIDER_RSA_AES):
        raise Unacceptable(
            MessageClass.NACK_UNSUPPORTED_CRYPTO_PROVIDER,
            f"the provider {provider.name} of type {provider.provider_type} is not known here",
        )
