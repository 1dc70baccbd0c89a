"""The properties of a message that are about its signature and its encryption."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocol import UserMessage

_HASHES = {0x8003: "md5", 0x8004: "sha1", 0x800C: "sha256", 0x800E: "sha512"}
_CIPHERS = {0x6602: "rc2", 0x6801: "rc4", 0x660E: "aes128", 0x660F: "aes192", 0x6610: "aes256"}


class SecurityProperties:
    """Properties of `Message`.

    Those about verified signatures are the words of the queue manager of the queue.
    """

    __slots__ = ()

    @property
    def packet(self) -> UserMessage:
        """Return all headers."""
        raise NotImplementedError  # `Message` has it

    @property
    def authenticated(self) -> bool:
        """Return whether the queue manager of the queue has verified the message's signature."""
        from protocol.security_marks import is_authenticated

        return is_authenticated(self.packet)

    @property
    def encrypted(self) -> bool:
        """Return whether the body came encrypted; in a queue of the destination it is plain."""
        from protocol.security_marks import was_encrypted

        header = self.packet.security
        still = header is not None and bool(header.flags.body_encrypted)
        return still or was_encrypted(self.packet)

    @property
    def principals(self) -> tuple[str, ...]:
        """Return the names of the verified sender: `sid:S-1-...` and `signer:fingerprint`."""
        from protocol.security_marks import principals

        return principals(self.packet)

    @property
    def signer(self) -> dict[str, str | int] | None:
        """Return the verified signer; None without one.

        {subject, issuer, serial, fingerprint, expires, key_bits, hash, style}: the names as in
        RFC 4514, `expires` in ISO 8601, `style` 1, 2 or 3 for a signature of that version of MSMQ.
        """
        header = self.packet.security
        if header is None or not self.authenticated:
            return None
        from qmd.message_security.signatures import described

        style = (int(header.flags.signature_type) + 1) // 2
        return {**described(header.certificate), "hash": self.hash_algorithm or "", "style": style}

    @property
    def certificate(self) -> bytes:
        """Return the certificate of the signer in DER; empty when there is none."""
        header = self.packet.security
        return b"" if header is None else header.certificate

    @property
    def hash_algorithm(self) -> str | None:
        """Return the name of the signature's hash algorithm; None when it has no signature."""
        header, value = self.packet.security, self.packet.properties.hash_algorithm
        several = self.packet.multi_queue
        in_list = several is not None and bool(several.signature.signature)
        if header is None or not (header.signature or in_list):
            return None
        return _HASHES.get(value, f"0x{value:04x}")

    @property
    def encryption_algorithm(self) -> str | None:
        """Return the name of the body's encryption algorithm; None when it came plain."""
        value = self.packet.properties.encryption_algorithm
        return _CIPHERS.get(value, f"0x{value:04x}") if self.encrypted else None
