"""Certificates of queue managers: reading the facts that decide about a session.

A certificate names its queue manager by a URI in the subject alternative names, `urn:uuid:` and the
GUID; DNS names and addresses beside it are the names by which other hosts dial it.

A key for TLS may change; the *identity key* of the data folder stays. A certificate of another key
therefore carries an *endorsement*: the identity key, the time at which the TLS key was made, and
the identity key's signature of both with the GUID. Other queue managers know a host by the identity
key, and see which of two endorsed keys is the later one.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from qmd.tls.errors import BadCertificate

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes

GUID_URI = "urn:uuid:"
#: An object identifier below the arc of UUIDs, which needs no registration (ITU-T X.667).
ENDORSEMENT = x509.ObjectIdentifier("2.25.266606531662253783784911099125454804878")
LABEL = b"qmd TLS key\0"
NAMES_MAX = 64
_LAYOUT = struct.Struct(">2s32sQ64s")  # an OCTET STRING of DER: tag and length, then its content
_HEAD = bytes((0x04, _LAYOUT.size - 2))


class Certificate(NamedTuple):
    """The facts of a certificate.

    `guid` is on the wire as in packets. `key` is the SHA-256 digest of the public key. `identity`
    is the identity key (32 bytes) that endorses the key or is the key itself; b"" if there is none.
    `issued_s` is the time of the endorsement, in seconds since 1970, and 0 without one.
    """

    guid: bytes
    names: tuple[str, ...]
    key: bytes
    identity: bytes
    issued_s: int
    not_before: datetime
    not_after: datetime
    is_self_signed: bool

    @property
    def fingerprint(self) -> str:
        """The SHA-256 digest of its key, as `qmd tls show` and `qmd tls pin` write it."""
        return self.key.hex()

    @property
    def origin_key(self) -> str:
        """The name of the key by which its queue manager is known: half of a digest, in hex."""
        return origin_key(self.identity or self.key)

    def has_name(self, host: str) -> bool:
        """Return whether it names a host, which is a name or an address that was dialled."""
        return _plain(host) in map(_plain, self.names)


def origin_key(identity: bytes) -> str:
    """Return the name of an identity key (32 bytes)."""
    return hashlib.sha256(identity).digest()[:16].hex()


def key_digest(public: CertificatePublicKeyTypes) -> bytes:
    """Return the SHA-256 digest of a public key, 32 bytes."""
    encoded = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).digest()


def read_certificate(found: x509.Certificate) -> Certificate:
    """Read a certificate.  Raises BadCertificate."""
    try:
        public = found.public_key()
        key = key_digest(public)
        is_self_signed = found.issuer == found.subject
        names = _alternative_names(found)
        guid = _guid(names)
        identity, issued_s = _endorsement(found, guid, key)
    except BadCertificate:
        raise
    except Exception as error:  # cryptography raises various exceptions for malformed extensions
        raise BadCertificate(f"it cannot be read: {error}") from error
    if not identity and is_self_signed and isinstance(public, Ed25519PublicKey):
        identity = public.public_bytes_raw()
    hosts = [
        str(each.value) for each in names if not isinstance(each, x509.UniformResourceIdentifier)
    ]
    return Certificate(
        guid,
        tuple(hosts[:NAMES_MAX]),
        key,
        identity,
        issued_s,
        found.not_valid_before_utc,
        found.not_valid_after_utc,
        is_self_signed,
    )


def endorse(
    identity: Ed25519PrivateKey, guid: bytes, key: bytes, issued_s: int
) -> x509.ExtensionType:
    """Return the extension in which an identity key endorses the key with a digest."""
    public = identity.public_key().public_bytes_raw()
    signature = identity.sign(_endorsed(guid, key, issued_s))
    return x509.UnrecognizedExtension(ENDORSEMENT, _LAYOUT.pack(_HEAD, public, issued_s, signature))


def guid_uri(guid: bytes) -> str:
    """Return the URI that names a queue manager in a certificate."""
    return GUID_URI + str(uuid.UUID(bytes_le=guid))


def _endorsed(guid: bytes, key: bytes, issued_s: int) -> bytes:
    return LABEL + guid + struct.pack(">Q", issued_s) + key


def _alternative_names(found: x509.Certificate) -> list[x509.GeneralName]:
    try:
        extension = found.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return list(extension.value)


def _guid(names: list[x509.GeneralName]) -> bytes:
    guids = {
        uuid.UUID(each.value[len(GUID_URI) :]).bytes_le
        for each in names
        if isinstance(each, x509.UniformResourceIdentifier)
        and each.value.casefold().startswith(GUID_URI)
    }
    if len(guids) != 1:
        raise BadCertificate(f"it names {len(guids)} queue managers, not one: see qmd tls request")
    return guids.pop()


def _endorsement(found: x509.Certificate, guid: bytes, key: bytes) -> tuple[bytes, int]:
    try:
        extension = found.extensions.get_extension_for_oid(ENDORSEMENT).value
    except x509.ExtensionNotFound:
        return b"", 0
    assert isinstance(extension, x509.UnrecognizedExtension)
    if len(extension.value) != _LAYOUT.size or extension.value[:2] != _HEAD:
        raise BadCertificate("the endorsement of its key is malformed")
    _, public, issued_s, signature = _LAYOUT.unpack(extension.value)
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _endorsed(guid, key, issued_s))
    except InvalidSignature:
        raise BadCertificate("the endorsement of its key is not valid") from None
    if issued_s > datetime.now(UTC).timestamp() + 86400:
        raise BadCertificate("the endorsement of its key is from the future")
    return public, issued_s


def _plain(host: str) -> str:
    """Return a name or an address in the one form in which they are compared."""
    host = host.partition("%")[0].strip("[]").removeprefix("::ffff:")
    try:
        return str(ip_address(host))
    except ValueError:
        return host.casefold().rstrip(".")
